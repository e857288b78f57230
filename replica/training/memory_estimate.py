"""What of a rank's memory candidates may take."""

from __future__ import annotations

from aiperf_hpc.config import RunConfig
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.search.base import MemoryBound
from aiperf_hpc.ops_counter.memory import MemoryLimit


def memory_bound(config: RunConfig, initial: Graph, limit: int) -> MemoryBound | None:
    """Return what candidates may take: a rank's memory, at the batch size of the initial network.

    None where the initial network itself does not fit at any batch size: no candidate would.

    Args:
        config: the run's.
        initial: its initial network; where that needs a smaller batch, so may candidates.
        limit: bytes that one rank may take.
    """
    memory = MemoryLimit(config, limit)
    batch = memory.fitting_batch(initial, config.training.batch_size)
    if not batch:
        return None
    return MemoryBound(limit, lambda graph: memory.needed(graph, batch))
