"""What of a rank's memory candidates may take."""

from __future__ import annotations

from collections.abc import Callable

from aiperf_hpc.config import RunConfig
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.search.base import MemoryBound
from aiperf_hpc.ops_counter.memory import MemoryLimit
from aiperf_hpc.replica.training.best_epoch import keeps_best_epochs


def memory_limit(
    config: RunConfig, device_bytes: int | None, available_bytes: Callable[[], int]
) -> MemoryLimit:
    """Return what a training may take on a rank: what is configured, or all that is there.

    Args:
        config: the run's.
        device_bytes: of an accelerator; None where the host's memory is the training's.
        available_bytes: returns the host's for each rank, of which it keeps decoded images too.
    """
    # The copies are in the host's memory, which is the training's too where it is no device's.
    copies = device_bytes is None and keeps_best_epochs(config)
    if config.engine.memory_gib is not None:
        return MemoryLimit(config, int(config.engine.memory_gib * 2**30), copies)
    if device_bytes is not None:
        return MemoryLimit(config, device_bytes, copies)
    kept = int(config.dataset.decoded_gib * 2**30)
    return MemoryLimit(config, available_bytes() - kept, copies)


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
