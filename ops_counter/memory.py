"""Memory estimate of training."""

from __future__ import annotations

import math
from dataclasses import dataclass

from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import EngineError
from aiperf_hpc.formatting import size
from aiperf_hpc.graph import Graph
from aiperf_hpc.ops_counter.traffic import PRECISION_BYTES
from aiperf_hpc.trial import Hyperparameters

FRAMEWORK_BYTES = 1024 * 2**20
"""Memory of a process without its network: framework, library workspaces, code."""
_STATE = {"sgd": 1, "adam": 2, "adamw": 2, "lamb": 2, "asgd": 1}
"""Values of optimizer state per parameter."""
_PASSING = {"lamb": 2, "asgd": 1}
"""Temporary values per parameter in an update, or in the evaluation of the average."""


def training_bytes(graph: Graph, batch_size: int, precision: str, optimizer: str = "sgd") -> int:
    """Return an estimate in bytes of the memory to train ``graph``.

    It is the sum of: weights, gradients and optimizer state in fp32; the outputs that the backward
    pass reads, in the compute type (of convolutions and activations, not of normalizations and
    sums); twice the working set of the largest layer (its gradient and a convolution's unfolded
    input); and weights and state of the prefetched network, assumed to be as large.
    docs/decisions/memory.md compares it with measured peaks.
    """
    size = PRECISION_BYTES[precision]
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


def copied_bytes(graph: Graph, optimizer: str = "sgd") -> int:
    """Return the bytes of the copies from which a trial's best epoch can be re-executed.

    At most these are weights and state in fp32 at three points (end and beginning of the current
    epoch, beginning of the best epoch), and the weights at the end of the best epoch.
    """
    return (3 * (1 + _STATE[optimizer]) + 1) * 4 * graph.parameter_count


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Memory of a rank available for training, and the check of which trials fit."""

    config: RunConfig
    bytes: int
    """Memory in bytes that one rank may use."""
    holds_copies: bool = False
    """Whether the same memory holds the copies of best epochs, as on CPUs."""

    def needed(self, graph: Graph, batch_size: int) -> int:
        """Return an estimate in bytes of a rank's memory for its shard of a batch."""
        training, ranks = self.config.training, self.config.replica.ranks
        share = -(-batch_size // ranks)
        copies = copied_bytes(graph, training.optimizer) if self.holds_copies else 0
        return copies + training_bytes(graph, share, training.precision, training.optimizer)

    def fitting_batch(self, graph: Graph, batch_size: int) -> int:
        """Return the largest of batch_size, batch_size / 2, ... that fits; 0 if none does.

        Each rank has at least one sample of a batch.
        """
        while batch_size >= self.config.replica.ranks:
            if self.needed(graph, batch_size) <= self.bytes:
                return batch_size
            batch_size //= 2
        return 0

    def fits(self, graph: Graph, batch_size: int) -> bool:
        """Return whether training ``graph`` with this batch size is estimated to fit."""
        return self.fitting_batch(graph, batch_size) == batch_size

    def fit(self, graph: Graph, planned: Hyperparameters) -> Hyperparameters:
        """Return the hyperparameters, with a smaller batch size if necessary and allowed.

        Raises:
            EngineError: no allowed batch size fits.
        """
        wanted = planned.batch_size
        batch = self.fitting_batch(graph, wanted)
        if batch == 0 or (batch < wanted and self.config.engine.on_out_of_memory == "fail"):
            raise EngineError(
                f"batch size {wanted} needs an estimated "
                f"{size(self.needed(graph, wanted))}, {size(self.bytes)} are "
                "there; lower the batch size or raise engine.memory_limit_gib"
            )
        return planned.model_copy(update={"batch_size": batch})
