"""Ranks that are threads of this process, or processes of a real collective."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.primary.launchers.base import rank_starter
from aiperf_hpc.replica.parallel.collectives import Array, Collective, Copies, PendingSum


def run_ranks(run: Callable[[int], object], ranks: Iterable[int]) -> None:
    """Run a function for each rank, in a thread of its own."""
    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def run_on_ranks(program: str, ranks: int, collective: str, *arguments: str) -> str:
    """Run a program of this folder as the ranks of a collective; return its last line."""
    if collective == "horovod":
        pytest.importorskip("horovod", reason="Horovod has no wheels: make horovod builds it")
    script = str(Path(__file__).with_name(program))
    command = [*rank_starter(ranks, collective), sys.executable, script, collective, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


class Table:
    """Shared memory of ranks that are threads."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=PATIENCE_SECONDS)
        self.rows: list[Array] = [np.zeros(0)] * size


class Threads(Collective):
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
