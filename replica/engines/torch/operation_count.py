"""Operations of a training step by PyTorch's own counter, independent of ``ops_counter``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from aiperf_hpc.graph import Graph
from aiperf_hpc.replica.engines.torch.device import sample_inputs
from aiperf_hpc.replica.engines.torch.flat_layout import FlatLayout
from aiperf_hpc.replica.engines.torch.graph import build_module
from aiperf_hpc.run.replica_requests import MatrixOperations

Sizes = Sequence[int]


def _backward_of_convolution(
    gradient: Sizes,
    x: Sizes,
    weights: Sizes,
    *settings: object,
    **_: object,
) -> int:
    """Count the forward operations once per requested gradient (of the input, of the weights)."""
    # The arguments after the bias's sizes, strides, padding and dilation.
    transposed, requested = settings[4], cast("list[bool]", settings[7])
    forward = conv_flop_count(list(x), list(weights), list(gradient), transposed=bool(transposed))
    return int(forward) * sum(requested[:2])


CORRECTED: dict[Any, Any] = {torch.ops.aten.convolution_backward: _backward_of_convolution}
"""Corrects PyTorch 2.13, which ignores groups in the gradient of a convolution's weights (PyTorch
pull request 183405)."""


def matrix_operations(graph: Graph) -> MatrixOperations:
    """Return the operations of convolutions and matrix products for one sample.

    The forward and backward pass are executed on tensors without values.

    Raises:
        EngineError: a layer is unknown; the message names the node.
    """
    meta = torch.device("meta")
    parameters, statistics = (
        layout.views(torch.empty(layout.size, device=meta))
        for layout in map(FlatLayout, (graph.parameters, graph.statistics))
    )
    tensors: dict[str, Tensor] = {name: nn.Parameter(view) for name, view in parameters.items()}
    tensors |= {name: view.data for name, view in statistics.items()}
    module = build_module(graph, tensors, training=True, on_cpu=False)
    inputs = sample_inputs(graph, 1, meta)
    with FlopCounterMode(display=False, custom_mapping=CORRECTED) as counter:
        output = module(*inputs)
        forward = int(counter.get_total_flops())
        output.float().sum().backward()
    return MatrixOperations(forward=forward, training=int(counter.get_total_flops()))
