"""The context that all parts of one process of a replica share, and its stopwatch."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.config import RunConfig
from aiperf_hpc.replica.runtime.stopping import StopFlag
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import Identity, RunPaths
from aiperf_hpc.run.records import FileProblem
from aiperf_hpc.run.storage import Retry, Sync, no_retry, to_stable_storage
from aiperf_hpc.trial import TimePhase


class Stopwatch:
    """Sums wall seconds by phase. Other threads may read the current phase."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.phase = TimePhase.START
        """The current phase."""
        self._since = clock.monotonic()
        self._seconds: dict[TimePhase, float] = defaultdict(float)

    def enter(self, phase: TimePhase) -> None:
        """End the current phase and start ``phase``."""
        with self._lock:
            now = self._clock.monotonic()
            self._seconds[self.phase] += now - self._since
            self.phase = phase
            self._since = now

    @contextmanager
    def during(self, phase: TimePhase) -> Iterator[None]:
        """Count the block's time as ``phase``, then return to the previous phase."""
        before = self.phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def add(self, phase: TimePhase, seconds: float) -> None:
        """Add time that passed before this stopwatch was made."""
        self._seconds[phase] += seconds

    def take(self) -> dict[TimePhase, float]:
        """Return the seconds of each phase since the last call, up to now."""
        self.enter(self.phase)
        with self._lock:
            seconds = {phase: value for phase, value in self._seconds.items() if value > 0.0}
            self._seconds.clear()
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaContext:
    """The context of one process of a replica: its trainer or a search worker."""

    config: RunConfig
    paths: RunPaths
    """Paths of the run's files."""
    who: Identity
    """The replica and its attempt."""
    journal: JournalWriter
    """Journal of the process."""
    stop: StopFlag
    """Stop signal."""
    clock: Clock = SYSTEM
    """Clock of all waits, intervals and journal timestamps."""
    retry: Retry = no_retry
    """Retries reads and writes; a BackoffRetry waits while the storage is unavailable."""
    sync: Sync = to_stable_storage
    """Writes a file to stable storage."""
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    """The trainer's time by phase; unused by search workers."""

    @property
    def replica(self) -> str:
        return self.who.replica

    def exists(self, path: Path) -> bool:
        """Return whether a file of the run exists."""
        return self.retry(path.exists, str(path), "read")

    def delete(self, path: Path) -> None:
        """Delete a file of the run, if it exists."""
        self.retry(partial(path.unlink, missing_ok=True), str(path), "delete")

    def report(self, path: Path, problem: str, remedy: str) -> None:
        """Record a problem with a file of the run."""
        file = str(path.relative_to(self.paths.root))
        self.journal.append(FileProblem(file=file, problem=problem, remedy=remedy))
