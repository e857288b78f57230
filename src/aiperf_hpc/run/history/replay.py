"""Replay of a run's journals, in this process or, if they are large, in several processes.

A process reads all journals of some replicas and returns the resulting state, which has at most a
quarter of their size and consists mostly of columns of numbers. The states, merged in the order of
reading, equal the result of a single process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from aiperf_hpc.errors import JournalError
from aiperf_hpc.run.history.apply import HistoryState
from aiperf_hpc.run.history.tail import Tail, no_collections
from aiperf_hpc.run.paths import RunPaths, journal_order

POOL_BYTES: Final = 96 << 20
"""Minimum size of journals in bytes for which several processes are worth their start."""
SHARE_BYTES: Final = 32 << 20
"""Bytes of journals per task of a process; the journals of a replica are never split."""
MAX_PROCESSES: Final = 8


@dataclass(slots=True)
class Replay:
    """Journals with their read positions, and the state that follows from their records."""

    tail: Tail
    state: HistoryState
    rebuilt: int = 0
    """Number of times that everything was read again from the beginning."""

    @classmethod
    def of(cls, tail: Tail) -> Replay:
        """Return a replay of journals with nothing read."""
        return cls(tail, HistoryState(tail.starts))

    def read(self, replica: str | None = None, only: Sequence[Path] | None = None) -> None:
        """Read the new records of the journals of one replica or of all.

        Args:
            replica: the replica; all when not given.
            only: journals to read instead, in the order of reading.

        Raises:
            JournalError: a journal is unreadable.
        """
        self._apply(replica, only)
        while self.tail.stale:
            # A later attempt of a replica became visible after records that it fences off were
            # applied. That is rare: read all again, with every fence known from the beginning.
            self.tail = self.tail.anew()
            self.state = HistoryState(self.tail.starts)
            self.rebuilt += 1
            self._apply(None, only)

    def add(self, other: Replay) -> bool:
        """Add the journals of other replicas; return whether they could be read separately.

        If not, this replay must be discarded.
        """
        self.rebuilt = max(self.rebuilt, other.rebuilt)
        self.tail.add(other.tail)
        return self.state.add(other.state)

    def _apply(self, replica: str | None, only: Sequence[Path] | None) -> None:
        for source in self.tail.look(replica) if only is None else self.tail.take(only):
            self.state.apply(source, self.tail.added(source))


def read_apart(paths: RunPaths, tail: Tail) -> Replay | None:
    """Read all journals of a run by several processes; None if one process must read them.

    That is so if there is little to read or only one processor, or if the parts cannot be read or
    combined: the one process then reports the reason.

    Args:
        paths: paths of the run.
        tail: journals of the run, with nothing read.

    Raises:
        JournalError: the folders are unreadable.
    """
    journals = tail.unknown()
    shares = list(shares_of(journals, SHARE_BYTES))
    processes = min(MAX_PROCESSES, len(os.sched_getaffinity(0)), len(shares))
    if processes < 2 or sum(map(_size, journals)) < POOL_BYTES:
        return None
    with suppress(JournalError, BrokenProcessPool, OSError), _pool(processes) as pool:
        reading = [pool.submit(read_share, paths, share) for share in shares]
        whole = Replay.of(tail.anew())
        whole.read(only=[path for path in journals if not _replica_of(path)])
        # Each result is released once it was added; otherwise all would be in memory twice.
        if all(whole.add(reading.pop(0).result()) for _ in shares):
            return whole
    return None


def shares_of(journals: Sequence[Path], most: int) -> Iterator[list[Path]]:
    """Divide the journals of replicas, in the order of reading, never those of one replica.

    Args:
        journals: journals of a run; the primary's and those outside replicas' folders are omitted.
        most: maximum bytes of a part, unless it has a single replica.
    """
    share: list[Path] = []
    held = 0
    for replica, group in groupby(journals, _replica_of):
        files = list(group)
        size = sum(map(_size, files))
        if share and held + size > most:
            yield share
            share, held = [], 0
        if replica:
            share += files
            held += size
    if share:
        yield share


def read_share(paths: RunPaths, share: Sequence[Path]) -> Replay:
    """Return the replay of some journals of a run.

    Raises:
        JournalError: one is unreadable.
    """
    replay = Replay.of(Tail(paths, {}))
    with no_collections(keep_all=False):
        replay.read(only=share)
    return replay


def _replica_of(journal: Path) -> str:
    """Return the replica of a journal; empty for the primary's and outside replicas' folders."""
    return journal_order(journal)[0]


@contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    # Not forked: the caller may have threads.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_end_with_parent)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """Leave interrupts to the parent, and do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101 -- it started this process

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _size(journal: Path) -> int:
    """Return the size of a journal in bytes; 0 if it does not exist."""
    try:
        return journal.stat().st_size
    except OSError:
        return 0
