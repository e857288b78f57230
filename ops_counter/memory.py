"""How much memory a training will take."""

from __future__ import annotations

import math
from dataclasses import dataclass

from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import EngineError
from aiperf_hpc.graph import Graph
from aiperf_hpc.system.summary import size
from aiperf_hpc.trial import Hyperparameters

FRAMEWORK_BYTES = 1024 * 2**20
"""What the process holds besides its network: framework, library workspaces, code."""
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
_STATE = {"sgd": 1, "adam": 2, "adamw": 2, "lamb": 2, "asgd": 1}
"""The numbers that an optimizer keeps of each parameter."""
_PASSING = {"lamb": 2, "asgd": 1}
"""The numbers of each parameter that it makes besides in an update, or to evaluate the average."""


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


def copied_bytes(graph: Graph, optimizer: str = "sgd") -> int:
    """Return the bytes of the copies from which a trial's best epoch can be executed again.

    At most there are weights and state of three moments in fp32 (this epoch's end, its beginning,
    and the beginning of the best one), and the weights that were evaluated at the best one's end.
    """
    return (3 * (1 + _STATE[optimizer]) + 1) * 4 * graph.parameter_count


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """What of a rank's memory a training may take, and what of a run's trials fits into it."""

    config: RunConfig
    bytes: int
    """What one rank may take."""
    holds_copies: bool = False
    """Whether the copies of best epochs are in the same memory, as where processors train."""

    def needed(self, graph: Graph, batch_size: int) -> int:
        """Return an estimate of what one rank takes for its share of such batches, in bytes."""
        training, ranks = self.config.training, self.config.replica.ranks
        share = -(-batch_size // ranks)
        copies = copied_bytes(graph, training.optimizer) if self.holds_copies else 0
        return copies + training_bytes(graph, share, training.precision, training.optimizer)

    def fitting_batch(self, graph: Graph, batch_size: int) -> int:
        """Return the largest of batch_size, batch_size / 2, ... that fits; 0 when none does.

        Each rank has at least one sample of a batch.
        """
        while batch_size >= self.config.replica.ranks:
            if self.needed(graph, batch_size) <= self.bytes:
                return batch_size
            batch_size //= 2
        return 0

    def fits(self, graph: Graph, batch_size: int) -> bool:
        """Return whether training ``graph`` in such batches is estimated to fit."""
        return self.fitting_batch(graph, batch_size) == batch_size

    def fit(self, graph: Graph, planned: Hyperparameters) -> Hyperparameters:
        """Return what to train with: as planned, in smaller batches where that must and may be.

        Raises:
            EngineError: no batch that may be used fits.
        """
        wanted = planned.batch_size
        batch = self.fitting_batch(graph, wanted)
        if batch == 0 or (batch < wanted and self.config.engine.on_memory == "refuse"):
            raise EngineError(
                f"batch size {wanted} needs an estimated "
                f"{size(self.needed(graph, wanted))}, {size(self.bytes)} are "
                "there; lower the batch size or raise engine.memory_gib"
            )
        return planned.model_copy(update={"batch_size": batch})

    def fits_beside(self, graph: Graph, batch_size: int, taken: int) -> bool:
        """Return whether a step in such batches fits beside a training that takes some bytes."""
        return taken + self.needed(graph, batch_size) <= self.bytes
