"""The journals of a run, their new records, and the time from which records no longer count."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path

from aiperf_hpc.run.journal import JournalReader, Problem, on_journals
from aiperf_hpc.run.paths import FIRST, Incarnation, RunPaths, journal_order
from aiperf_hpc.run.records import ReplicaStarted
from aiperf_hpc.run.records.parsing import AnyRecord
from aiperf_hpc.run.storage import Retry, no_retry

Starts = dict[str, dict[Incarnation, float]]
"""The known start of each attempt of each replica, UTC seconds."""


def fence(starts: dict[Incarnation, float], incarnation: Incarnation) -> float:
    """Return the time from which an attempt's records do not count: a later attempt started."""
    later = (utc for other, utc in starts.items() if other > incarnation)
    return min(later, default=math.inf)


@dataclass(slots=True)
class JournalSource:
    """A journal and its writer."""

    reader: JournalReader
    replica: str | None
    """The replica that writes it; None for the primary's journal."""
    incarnation: Incarnation = FIRST
    applied_utc: float = -math.inf
    """The latest time of a record that counts, UTC seconds."""
    fence: float = math.inf
    """The time from which its records do not count, UTC seconds, as far as that is known."""


@dataclass(eq=False)
class Tail:
    """The journals of a run with their read positions."""

    paths: RunPaths
    """Paths of the run."""
    starts: Starts
    """The known starts of attempts; updated by this object."""
    _: KW_ONLY
    replica: str | None = None
    """The one replica whose journals are read; all when not given. The primary's journal is read
    either way."""
    retry: Retry = no_retry
    """Retry policy; a BackoffRetry waits while the storage is unavailable."""
    until: Mapping[Path, int] | None = None
    """Number of lines to read of each journal; others are skipped. Default: everything."""

    def __post_init__(self) -> None:
        self.sources: dict[Path, JournalSource] = {}
        self.strays: list[Problem] = []
        """Journals outside the folders of attempts."""
        self.stale = False
        """Whether a record was applied that a start which was read later fences off."""
        self.replaced = False
        """Whether any attempt of a replica is known to have been replaced."""
        self._sources_of: dict[str, list[JournalSource]] = {}
        self._known: set[str] = set()
        """The files that were found, journals or not."""

    def anew(self) -> Tail:
        """Return the same journals with nothing read, but with the known starts."""
        return replace(self)

    def look(self, replica: str | None) -> Iterable[JournalSource]:
        """Return the journals that exist now, of one replica or of all.

        Raises:
            JournalError: the folders are unreadable.
        """
        self.take(self.unknown(replica))
        return self.sources.values() if replica is None else self._sources_of.get(replica, ())

    def take(self, journals: Iterable[Path]) -> Iterable[JournalSource]:
        """Add journals in the order of reading; return all journals."""
        for path in journals:
            self._known.add(str(path))
            self._add(path)
        return self.sources.values()

    def unknown(self, replica: str | None = None) -> list[Path]:
        """Return the journals that exist now and are not yet added, in the order of reading.

        Raises:
            JournalError: the folders are unreadable.
        """
        where = f"the journals of {self.paths.root}"
        found = on_journals(self.retry, lambda: list(self._files(replica)), where, "look for")
        new = (Path(p) for p in found if p not in self._known)
        return sorted((p for p in new if self._until(p) != 0), key=journal_order)

    def add(self, other: Tail) -> None:
        """Add the journals of other replicas with their read positions."""
        for path, source in other.sources.items():
            source.reader.retry = self.retry
            self.sources[path] = source
        self.starts.update(other.starts)
        self.strays += other.strays
        self.replaced |= other.replaced
        self._sources_of.update(other._sources_of)
        self._known |= other._known

    def added(self, source: JournalSource) -> Iterator[AnyRecord]:
        """Yield the new records of a journal; its ``fence`` reflects the starts known by then.

        Raises:
            JournalError: the journal is unreadable.
        """
        replica = source.replica
        for record in source.reader.read_quickly():
            utc = record.utc
            if type(record.event) is ReplicaStarted and replica is not None:
                self._attempt_started(replica, source.incarnation, utc)
            if source.applied_utc < utc < source.fence:
                source.applied_utc = utc
            yield record

    def _until(self, path: Path) -> int | None:
        return None if self.until is None else self.until.get(path, 0)

    def _files(self, replica: str | None) -> Iterator[str]:
        if replica is None and self.replica is not None:
            yield str(self.paths.primary_journal)
        yield from self.paths.journal_files(replica or self.replica)

    def _add(self, path: Path) -> None:
        if path == self.paths.primary_journal:
            self.sources[path] = JournalSource(self._reader(path), None)
            return
        try:
            incarnation = Incarnation.parse(path.parent.name)
        except ValueError:
            what = (
                "this journal is not in the folder of an attempt of a replica: nothing in it counts"
            )
            self.strays.append(Problem(path, 1, what))
            return
        name = path.parent.parent.name
        source = JournalSource(self._reader(path), name, incarnation)
        self.sources[path] = source
        self._sources_of.setdefault(name, []).append(source)
        self._put_fence(source, self.starts.get(name, {}))

    def _reader(self, path: Path) -> JournalReader:
        return JournalReader(path, retry=self.retry, until=self._until(path))

    def _attempt_started(self, replica: str, incarnation: Incarnation, utc: float) -> None:
        starts = self.starts.setdefault(replica, {})
        if incarnation in starts:
            return
        starts[incarnation] = utc
        for other in self._sources_of[replica]:
            self._put_fence(other, starts)
            self.stale |= other.incarnation < incarnation and other.applied_utc >= utc

    def _put_fence(self, source: JournalSource, starts: dict[Incarnation, float]) -> None:
        source.fence = fence(starts, source.incarnation)
        self.replaced |= source.fence < math.inf


@contextmanager
def no_collections(*, keep_all: bool) -> Iterator[None]:
    """Disable the garbage collector, which would traverse everything read before repeatedly.

    Reading makes no cycles, and the collector took 80 % of the time of reading a large run.

    Args:
        keep_all: move the new objects to the oldest generation, as after the first reading, so
            that they are not traversed immediately afterwards.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if keep_all:
            gc.freeze()
            gc.unfreeze()  # To the oldest generation.
        if enabled:
            gc.enable()
