"""The history of a run, which search workers, status, report, score and verification read.

A refresh reads only what was added to the journals.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Self

from aiperf_hpc.run.history.replay import Replay, read_apart
from aiperf_hpc.run.history.replicas import ReplicaHistory
from aiperf_hpc.run.history.state import RunState
from aiperf_hpc.run.history.tail import Tail, no_collections
from aiperf_hpc.run.journal import Problem
from aiperf_hpc.run.journal_digest import Hash
from aiperf_hpc.run.paths import FIRST, Incarnation, RunPaths
from aiperf_hpc.run.storage import Retry, no_retry


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
