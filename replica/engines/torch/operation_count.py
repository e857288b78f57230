"""What PyTorch's own counter sees of a graph's training step: it knows nothing of our formulas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from aiperf_hpc.graph import Graph, Shape
from aiperf_hpc.replica.engines.torch.device import channels_first
from aiperf_hpc.replica.engines.torch.graph import build_module
from aiperf_hpc.run.reexecution import MatrixOperations

_LEAST_AXES = 4
"""The axes of a convolution's kernel in two dimensions; no other parameter has as many."""
_TYPES = {"float32": torch.float32, "int32": torch.int32, "bool": torch.bool}


Sizes = Sequence[int]


def _backward_of_convolution(
    gradient: Sizes,
    x: Sizes,
    weights: Sizes,
    *settings: object,
    **_: object,
) -> int:
    """Count as much as forward for each gradient that is wanted: by the input, by the weights."""
    # Behind the bias' sizes, strides, padding and dilation.
    transposed, wanted = settings[4], cast("list[bool]", settings[7])
    forward = conv_flop_count(list(x), list(weights), list(gradient), transposed=bool(transposed))
    return int(forward) * sum(wanted[:2])


CORRECTED: dict[Any, Any] = {torch.ops.aten.convolution_backward: _backward_of_convolution}
"""PyTorch 2.13 takes a grouped convolution's gradient by its weights for one without groups: its
pull request 183405."""


def matrix_operations(graph: Graph) -> MatrixOperations:
    """Return the operations of convolutions and matrix products for one sample.

    They are executed on tensors that have shapes and no values, forward and backward.

    Raises:
        EngineError: a layer is not known; the message names the node.
    """
    tensors: dict[str, Tensor] = {
        name: nn.Parameter(_empty(shape)) for name, shape in graph.parameters.items()
    }
    tensors |= {name: _empty(shape) for name, shape in graph.statistics.items()}
    module = build_module(graph, tensors, training=True, on_cpu=False)
    inputs = [
        channels_first(
            torch.empty((1, *graph.shapes[name]), dtype=_TYPES[graph.dtype(name)], device="meta")
        )
        for name in graph.inputs
    ]
    with FlopCounterMode(display=False, custom_mapping=CORRECTED) as counter:
        output = module(*inputs)
        forward = int(counter.get_total_flops())
        output.float().sum().backward()
    return MatrixOperations(forward=forward, training=int(counter.get_total_flops()))


def _empty(shape: Shape) -> Tensor:
    """Return a tensor as the engine has it: kernels (out, in, k, ...)."""
    if len(shape) < _LEAST_AXES:
        return torch.empty(shape, device="meta")
    *places, inputs, outputs = shape
    return torch.empty((outputs, inputs, *places), device="meta")
