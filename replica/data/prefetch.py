"""Making the next batches while one is trained on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from aiperf_hpc.replica.data.base import Batch

DEPTH = 2
"""Batches made before they are asked for."""


def prefetched(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the same batches in the same order, made by a thread that ends with this iterator.

    What making one raises is raised when its turn comes.
    """
    with ThreadPoolExecutor(1, "batches") as maker:
        coming = deque(maker.submit(next, batches, None) for _ in range(DEPTH))
        while (batch := coming.popleft().result()) is not None:
            coming.append(maker.submit(next, batches, None))
            yield batch
