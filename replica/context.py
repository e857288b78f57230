"""The context that all parts of one process of a replica share."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.config import RunConfig
from aiperf_hpc.replica.runtime.stopping import StopFlag
from aiperf_hpc.replica.runtime.stopwatch import Stopwatch
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import Identity, RunPaths
from aiperf_hpc.run.records import FileProblem
from aiperf_hpc.run.storage import Retry, Sync, no_retry, to_stable_storage


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
