"""Batches in order, prefetched by threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.replica.data.base import Batch, Part

DEPTH = 2
"""Number of prefetched batches."""
T = TypeVar("T")


def rank_parts(order: NDArray[np.intp], batch_size: int, part: Part) -> Iterator[NDArray[np.intp]]:
    """Yield a rank's part of each batch of samples in an order; empty parts are omitted."""
    for start in range(0, len(order), batch_size):
        own = part.of(order[start : start + batch_size])
        if len(own):
            yield own


def prefetched(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the same batches in the same order, read by a thread that ends with this iterator.

    An exception is raised in place of the batch that caused it.
    """
    with ThreadPoolExecutor(1, "batches") as thread:
        pending = deque(thread.submit(next, batches, None) for _ in range(DEPTH))
        while (batch := pending.popleft().result()) is not None:
            pending.append(thread.submit(next, batches, None))
            yield batch


def filled(
    parts: Iterable[Sequence[T]],
    empty: Callable[[int], Batch],
    fill: Callable[[T, Batch, int], None],
    threads: int,
) -> Iterator[Batch]:
    """Yield batches whose samples are read by threads, with enough prefetched to use all threads.

    Args:
        parts: sample numbers of each batch.
        empty: returns an uninitialized batch for a number of samples.
        fill: writes a sample into its place in a batch.
        threads: number of samples read concurrently; no sample depends on it.
    """
    pending: deque[tuple[Batch, list[Future[None]]]] = deque()
    with ThreadPoolExecutor(threads, "samples") as pool:
        try:
            for samples in parts:
                batch = empty(len(samples))
                work = [pool.submit(fill, each, batch, at) for at, each in enumerate(samples)]
                pending.append((batch, work))
                if len(pending) > DEPTH + threads // len(samples):
                    yield _finished(*pending.popleft())
            while pending:
                yield _finished(*pending.popleft())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _finished(batch: Batch, work: list[Future[None]]) -> Batch:
    for sample in work:
        sample.result()
    return batch
