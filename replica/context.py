"""What all parts of one process of a replica work with."""

from __future__ import annotations

from dataclasses import dataclass, field

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.config import RunConfig
from aiperf_hpc.replica.runtime.stopping import StopFlag
from aiperf_hpc.replica.runtime.stopwatch import Stopwatch
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import Identity, RunPaths
from aiperf_hpc.run.storage import Retry, Sync, no_retry, to_stable_storage


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaContext:
    """What all parts of one process of a replica, its trainer or a search worker, work with."""

    config: RunConfig
    paths: RunPaths
    """The names of the run's files."""
    who: Identity
    """The replica, and which of its lives."""
    journal: JournalWriter
    """The process's own journal."""
    stop: StopFlag
    """The flag that ends the work."""
    clock: Clock = SYSTEM
    """The clock of every pause and interval; the journal is stamped by the same."""
    retry: Retry = no_retry
    """The way to read and write the run's files; a BackoffRetry waits while storage is away."""
    sync: Sync = to_stable_storage
    """The way to bring a file to stable storage."""
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    """The sum of the trainer's time by phases; a search worker has no use for it."""
