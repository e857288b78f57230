"""Ranks that are threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import numpy as np
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.replica.parallel.collectives.base import Array, Copies, PendingSum, Unlimited


def run_ranks(run: Callable[[int], object], ranks: Iterable[int]) -> None:
    """Run a function for each rank, in a thread of its own."""
    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


class Table:
    """Where threads that play ranks meet."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=PATIENCE_SECONDS)
        self.rows: list[Array] = [np.zeros(0)] * size


class Threads(Unlimited):
    """A collective whose ranks are threads of this process."""

    name = "threads"

    def __init__(self, table: Table, rank: int, size: int) -> None:
        self.table = table
        self.rank = self.local_rank = rank
        self.size = self.local_size = size
        self.copies = Copies()

    def gather(self, row: Array) -> Array:
        self.table.rows[self.rank] = np.array(row)  # Of a framework's tensor too.
        self.table.barrier.wait()
        rows = np.array(self.table.rows)
        self.table.barrier.wait()
        return rows

    def start_allreduce_sum(self, buffer: Array) -> PendingSum:
        total = self.gather(buffer).sum(axis=0)
        return lambda: total

    def allreduce_sum(self, flat: Array) -> None:
        flat[:] = self.gather(flat).sum(axis=0)

    def barrier(self) -> None:
        self.table.barrier.wait()

    def broadcast(self, array: Array) -> None:
        array[:] = self.gather(array)[0]

    command = broadcast

    def abort(self, status: int) -> None:
        raise SystemExit(status)

    def close(self) -> None:
        pass
