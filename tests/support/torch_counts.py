"""The operations of a graph's training step, as PyTorch's counter sees them and by our formulas."""

from __future__ import annotations

from typing import Any

import torch
from tests.support.torch_network import meta_tensors, run
from torch.utils.flop_counter import FlopCounterMode

from aiperf_hpc.graph import Graph
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.verification.execution.comparison import MATRIX_LAYERS


def executed_apart(
    graph: Graph, corrected: dict[Any, Any] | None = None, samples: int = 1
) -> tuple[int, int]:
    """The operations of a forward pass, and of one with its backward pass, of some samples.

    ``corrected`` replaces PyTorch's counts of some operators.
    """
    *places, channels = graph.nodes[0].layer.output_shape()
    images = torch.empty((samples, channels, *places), device="meta")
    with FlopCounterMode(display=False, custom_mapping=corrected) as counter:
        found = run(graph, meta_tensors(graph), images)[graph.output.name]
        forward = int(counter.get_total_flops())
        found.sum().backward()  # type: ignore[no-untyped-call]
    return forward, int(counter.get_total_flops())


def executed(graph: Graph, samples: int = 1) -> int:
    """Multiplications and additions of matrix products in one training step."""
    return executed_apart(graph, samples=samples)[1]


def counted_apart(graph: Graph) -> tuple[int, int]:
    """Return matrix layers' operations by formula: forward, and of a step without the update."""
    found = [each for kind, each in count(graph).by_kind().items() if kind in MATRIX_LAYERS]
    forward = sum(each.forward for each in found)
    return forward, forward + sum(each.backward - each.update for each in found)


def counted(graph: Graph) -> int:
    """Those of a training step by formula, without the update."""
    return counted_apart(graph)[1]
