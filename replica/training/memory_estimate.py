"""What of a rank's memory candidates may take."""

from __future__ import annotations

from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.search.base import MemoryBound
from aiperf_hpc.ops_counter.memory import MemoryLimit


def memory_bound(memory: MemoryLimit, initial: Graph) -> MemoryBound | None:
    """Return what candidates may take: a rank's memory, at the batch size of the initial network.

    None where the initial network itself does not fit at any batch size: no candidate would.

    Args:
        memory: what one rank may take.
        initial: the run's initial network; where that needs a smaller batch, so may candidates.
    """
    batch = memory.fitting_batch(initial, memory.config.training.batch_size)
    if not batch:
        return None
    return MemoryBound(memory.bytes, lambda graph: memory.needed(graph, batch))
