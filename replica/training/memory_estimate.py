"""How much memory a training will take."""

from __future__ import annotations

import math

from aiperf_hpc.config import RunConfig
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.search.base import MemoryBound

FRAMEWORK_BYTES = 1024 * 2**20
"""What the process holds besides its network: framework, library workspaces, code."""
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
_STATE = {"sgd": 1, "adam": 2, "adamw": 2, "lamb": 2, "asgd": 1}
"""Numbers that an optimizer keeps of each parameter."""
_PASSING = {"lamb": 2, "asgd": 1}
"""Those that it makes besides in an update, or when the average is evaluated."""


def training_bytes(graph: Graph, batch_size: int, precision: str, optimizer: str = "sgd") -> int:
    """Return an estimate of the bytes that training ``graph`` takes.

    Weights, gradients and the optimizer's state in fp32; the outputs that the backward pass reads,
    in the compute type (a convolution's, which its normalisation reads, and an activation's, which
    the next convolution reads; not a normalisation's or a sum's); and, twice, the largest layer's
    own working set (its gradient and a convolution's unfolded input). And weights and state of
    the network that is made ready meanwhile, taken to be as large.
    docs/decisions/memory.md compares it with measured peaks.
    """
    size = _BYTES[precision]
    trained = 2 + _STATE[optimizer] + _PASSING.get(optimizer, 0)
    parameters = (trained + 1 + _STATE[optimizer]) * 4 * graph.parameter_count
    if precision != "fp32":
        parameters += size * graph.parameter_count
    kept = sum(math.prod(graph.shapes[node.name]) for node in graph.nodes if node.layer.output_kept)
    largest = max(
        math.prod(graph.shapes[node.name])
        + (math.prod(graph.input_shapes(node.name)[0]) if node.layer.unfolds_input else 0)
        for node in graph.nodes
    )
    return FRAMEWORK_BYTES + parameters + batch_size * size * (kept + 2 * largest)


def fitting_batch(
    graph: Graph,
    batch_size: int,
    precision: str,
    limit: int,
    ranks: int = 1,
    optimizer: str = "sgd",
) -> int:
    """Return the largest of batch_size, batch_size / 2, ... that fits; 0 when none does.

    Args:
        graph: what is trained.
        batch_size: of all ranks together.
        precision: fp32, bf16 or fp16.
        limit: bytes that one rank may take.
        ranks: among which a batch is divided; each has at least one sample.
        optimizer: whose state it has.
    """
    while batch_size >= ranks:
        if training_bytes(graph, -(-batch_size // ranks), precision, optimizer) <= limit:
            return batch_size
        batch_size //= 2
    return 0


def memory_bound(config: RunConfig, initial: Graph, limit: int) -> MemoryBound | None:
    """Return what candidates may take: a rank's memory, at the batch size of the initial network.

    None where the initial network itself does not fit at any batch size: no candidate would.

    Args:
        config: the run's.
        initial: its initial network; where that needs a smaller batch, so may candidates.
        limit: bytes that one rank may take.
    """
    training, ranks = config.training, config.replica.ranks
    precision, optimizer = training.precision, training.optimizer
    batch = fitting_batch(initial, training.batch_size, precision, limit, ranks, optimizer)
    share = -(-batch // ranks)
    if not batch:
        return None
    return MemoryBound(limit, lambda graph: training_bytes(graph, share, precision, optimizer))
