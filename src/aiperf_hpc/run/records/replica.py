"""The records of a replica: its start, its data, its heartbeats and its telemetry."""

from __future__ import annotations

from typing import Literal

from aiperf_hpc.run.clocks import ClockReading, Time
from aiperf_hpc.run.journal_digest import JournalDigest
from aiperf_hpc.run.records.base import Duration, Event
from aiperf_hpc.telemetry.values import Equipment, Sample
from aiperf_hpc.trial import (
    DatasetInfo,
    DevicePeak,
    Machine,
    TimePhase,
)
from aiperf_hpc.untrusted.bounds import (
    Count,
    Name,
    Utc,
)


class ReplicaStarted(Event):
    """A replica is there, before it loads a framework or data."""

    type: Literal["replica_started"] = "replica_started"
    replica: Name
    pid: int
    engine: str
    machine: Machine
    job: str | None = None
    """The scheduler's number of the job that it runs in."""
    hosts: tuple[str, ...] = ()
    """The host of each of its ranks, in order; empty when there is one rank."""
    clock: ClockReading | None = None
    """The clock of the replica's host beside the file server's."""
    manifest_sha256: str = ""
    """SHA-256 of ``run.yaml`` as the replica found it, in hexadecimal."""
    alive_seconds: Duration = 0.0
    """For how long its process had existed; 0 in records of versions that did not say it."""


class ReplicaReady(Event):
    """The replica could train, and waits for the run's clock, as all others do."""

    type: Literal["replica_ready"] = "replica_ready"


class ClockSeen(Event):
    """The replica learned when the run's clock started."""

    type: Literal["clock_seen"] = "clock_seen"
    start_utc: Utc


class DatasetLoaded(Event):
    """The replica read its dataset."""

    type: Literal["dataset_loaded"] = "dataset_loaded"
    dataset: DatasetInfo
    memory_limit_bytes: Count | None = None
    """Bytes that a training may now take on each rank."""
    memory_holds_copies: bool = False
    """Whether they are for the copies of best epochs, too; not in records of earlier versions."""
    staged_seconds: Duration = 0.0
    """Seconds that bringing the dataset to the node took, which are charged as all time is."""
    staged_bytes: Count = 0
    """Bytes that were copied, or read into memory."""


class PeakMeasured(Event):
    """What a rank's device can compute at most, as measured before the training.

    A replica's first rank writes it for all of them.
    """

    type: Literal["peak_measured"] = "peak_measured"
    rank: Count
    peak: DevicePeak


class TimeSpent(Event):
    """Wall seconds of the trainer by phase since the last such record of this file."""

    type: Literal["time_spent"] = "time_spent"
    trial: str | None
    seconds: dict[TimePhase, Time]


class CompilerFailed(Event):
    """The process that compiles the next network did not: it failed, or was ended after its limit.

    The network is compiled in the rank itself, which may slow down the trial under way. Of several
    ranks, the first one's alone is recorded; each has a line in its log.
    """

    type: Literal["compiler_failed"] = "compiler_failed"
    problem: str


class RanksLost(Event):
    """Ranks no longer answer: the life of the replica ends, and with it the trial under way."""

    type: Literal["ranks_lost"] = "ranks_lost"
    ranks: tuple[int, ...]
    """The ranks that are gone; empty when all are there, and wait for each other."""
    reason: str


class Heartbeat(Event):
    """The replica is alive. Telemetry of its processes on the host of its first rank."""

    type: Literal["heartbeat"] = "heartbeat"
    phase: TimePhase
    cpu_percent: float
    """Percent of one core that all of them together used since the last heartbeat."""
    memory_bytes: Count
    """The sum of their resident sets; what processes share counts for each of them."""
    storage_wait_seconds: Time = 0.0
    """How long it has waited so far for storage that was full or away."""
    storage_waiting: str = ""
    """What it waits for now; empty when it does not."""


class PrimaryHeadSeen(Event):
    """What the primary had written by then of its journal, as it told the replicas."""

    type: Literal["primary_head_seen"] = "primary_head_seen"
    head: JournalDigest


class TelemetryStarted(Event):
    """A process began to sample its node, the only one of the run that does.

    A replica's trainer writes it, for its own node; the first rank of each other node of a replica
    writes a journal of its own with it and its samples.
    """

    type: Literal["telemetry_started"] = "telemetry_started"
    equipment: Equipment


class TelemetrySampled(Event):
    """What a node did and drew since the record before of the same journal."""

    type: Literal["telemetry"] = "telemetry"
    sample: Sample


class ReplicaEnded(Event):
    """The replica stopped in order."""

    type: Literal["replica_ended"] = "replica_ended"
    reason: str
