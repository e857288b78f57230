"""The history of a run, which search workers, status, report, score and verification read.

A refresh reads only what was added to the journals. Large journals are replayed in several
processes. Each reads all journals of some replicas and returns the resulting state, which has at
most a quarter of their size and consists mostly of columns of numbers. The states, merged in the
order of reading, equal the result of a single process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Final, Self

from aiperf_hpc.errors import JournalError
from aiperf_hpc.run.history.apply import HistoryState
from aiperf_hpc.run.history.replicas import ReplicaHistory
from aiperf_hpc.run.history.state import RunState
from aiperf_hpc.run.history.tail import Tail, no_collections
from aiperf_hpc.run.journal import Problem
from aiperf_hpc.run.journal_digest import Hash
from aiperf_hpc.run.paths import FIRST, Incarnation, RunPaths, journal_order
from aiperf_hpc.run.storage import Retry, no_retry

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


class RunHistory(RunState):
    """The state of a run after the records that the last ``refresh`` has read."""

    def __init__(
        self,
        paths: RunPaths,
        *,
        replica: str | None = None,
        retry: Retry = no_retry,
        until: Mapping[Path, int] | None = None,
    ) -> None:
        """Create a history with nothing read.

        Args:
            paths: paths of the run.
            replica: the one replica whose journals are read; all when not given. The primary's
                journal is read either way.
            retry: retry policy; a BackoffRetry waits while the storage is unavailable.
            until: Number of lines to read of each journal; others are skipped. Default: everything.
        """
        self.paths = paths
        self.lock = threading.RLock()
        """Lock that is held during a refresh, and by threads that read the history concurrently."""
        self._all = replica is None
        self._replay = Replay.of(Tail(paths, {}, replica=replica, retry=retry, until=until))
        self._show()

    @classmethod
    def read(cls, paths: RunPaths, *, replica: str | None = None) -> Self:
        """Return a history after a first refresh. Raises JournalError like ``refresh``."""
        history = cls(paths, replica=replica)
        history.refresh()
        return history

    def refresh(self, replica: str | None = None) -> None:
        """Read the new records of the journals of one replica or of all.

        Raises:
            JournalError: a journal is unreadable.
        """
        first = not self._tail.sources
        with self.lock, no_collections(keep_all=first):
            if first and self._all and replica is None:
                self._replay = read_apart(self.paths, self._tail) or self._replay
            try:
                self._replay.read(replica)
                if self._tail.replaced:
                    self._replay.state.interrupt()
            finally:
                self._show()

    def _show(self) -> None:
        """Adopt the replayed state."""
        for each in fields(RunState):
            setattr(self, each.name, getattr(self._replay.state, each.name))

    @property
    def rebuilt(self) -> int:
        """Number of times that everything was read again from the beginning."""
        return self._replay.rebuilt

    @property
    def _tail(self) -> Tail:
        return self._replay.tail

    # The content that was read.

    @property
    def problems(self) -> list[Problem]:
        """Malformed or misplaced records of all journals."""
        found = [p for source in self._tail.sources.values() for p in source.reader.problems]
        return found + self._tail.strays + self.orphans + self.lost_journals

    @property
    def lost(self) -> str:
        """The reason for which read records of the primary's journal are missing; empty if none."""
        own = self._tail.sources.get(self.paths.primary_journal)
        return f"the journal {own.reader.path} {own.reader.lost}" if own and own.reader.lost else ""

    @property
    def lost_journals(self) -> list[Problem]:
        """Journals of replicas that are missing or truncated.

        They were read before by this process or, according to its records, by the primary; or the
        run has ended, and the primary recorded of a replica what only its journal can have shown.
        """
        root, sources = self.paths.root, self._tail.sources
        found = {root / name: "is missing; restore it" for name in self.missing_journals}
        for replica in self.silent_replicas if self.run_ended is not None else ():
            path = self.paths.replica_journal(replica.id)
            found.setdefault(path, f"is missing, of a replica that {replica.seen}; restore it")
        found = {path: why for path, why in found.items() if path not in sources}
        read = {path: s.reader.lost for path, s in sources.items() if s.replica and s.reader.lost}
        return [Problem(path, 1, f"the journal {why}") for path, why in (found | read).items()]

    @property
    def silent_replicas(self) -> list[ReplicaHistory]:
        """Replicas without a start, of which the primary recorded what only journals can show."""
        return [each for each in self.replicas.values() if each.seen and not each.starts]

    def unlisted(self, workers: int) -> list[Path]:
        """Return journals that exist but are not yet in the listings that an NFS client caches.

        Args:
            workers: number of search workers of each replica.
        """
        paths, found = self.paths, list[Path]()
        for replica in self.replicas.values():
            last = max(replica.starts, default=FIRST)
            attempts = [last]
            if replica.ended is None:
                attempts.append(Incarnation(last.launch, last.restart + 1))
                attempts.append(Incarnation(last.launch + 1))
            for attempt in attempts:
                found.append(paths.replica_journal(replica.id, attempt))
                searches = range(workers)
                found += [paths.search_journal(replica.id, each, attempt) for each in searches]
        return [p for p in found if p not in self._tail.sources and os.path.exists(p)]

    @property
    def torn(self) -> list[Path]:
        """The journals that end in an unfinished line."""
        return [path for path, source in self._tail.sources.items() if source.reader.torn]

    @property
    def bytes_read(self) -> dict[Path, int]:
        """The bytes of each journal that were read so far: whole lines."""
        return {path: source.reader.offset for path, source in self._tail.sources.items()}

    @property
    def lines_read(self) -> dict[Path, int]:
        """The number of lines of each journal that were read so far."""
        return {path: source.reader.line for path, source in self._tail.sources.items()}

    @property
    def hashes(self) -> dict[Path, tuple[int, Hash]]:
        """The bytes of each journal that were read so far, and their SHA-256."""
        sources = self._tail.sources.items()
        return {path: (source.reader.offset, source.reader.hash) for path, source in sources}

    @property
    def record_count(self) -> int:
        """The number of records of all journals."""
        return sum(source.reader.count for source in self._tail.sources.values())
