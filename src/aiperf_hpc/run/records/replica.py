"""The records of a replica: its start, its data, its heartbeats and its telemetry."""

from __future__ import annotations

from typing import Literal

from aiperf_hpc.run.clocks import ClockReading, Time
from aiperf_hpc.run.journal_digest import JournalDigest
from aiperf_hpc.run.records.base import Duration, Event
from aiperf_hpc.telemetry.values import Equipment, TelemetrySample
from aiperf_hpc.trial import DatasetInfo, DevicePeak, Machine, TimePhase
from aiperf_hpc.untrusted.bounds import Count, Name, Utc


class ReplicaStarted(Event):
    """A replica started; it has not yet loaded a framework or data."""

    replica: Name
    pid: int
    engine: str
    machine: Machine
    job: str | None = None
    """The scheduler's identifier of its job."""
    hosts: tuple[str, ...] = ()
    """The host of each of its ranks, in order; empty for a single rank."""
    clock: ClockReading | None = None
    """The offset of the host's clock from the file server's."""
    manifest_sha256: str = ""
    """SHA-256 of ``run.yaml`` as the replica read it, in hexadecimal."""
    alive_seconds: Duration = 0.0
    """The age of its process; 0 in records of earlier versions."""


class ReplicaReady(Event):
    """The replica is ready to train and waits for the run's clock."""


class ClockSeen(Event):
    """The replica learned when the run's clock started."""

    start_utc: Utc


class DatasetLoaded(Event):
    """The replica read its dataset."""

    dataset: DatasetInfo
    memory_limit_bytes: Count | None = None
    """Bytes available for training on each rank."""
    memory_holds_copies: bool = False
    """Whether the limit includes the copies of best epochs; absent in earlier versions' records."""
    staged_seconds: Duration = 0.0
    """Seconds in which the dataset was staged to the node; they are charged as all time is."""
    staged_bytes: Count = 0
    """Bytes that were copied or read into memory."""


class ModulesImported(Event):
    """The imported modules of a rank: before its first trial, and at the end of rank 0 if changed.

    A replica's first rank writes the records of all ranks.
    """

    rank: Count
    package_sha256: str
    """The digest of this package's files at that time; empty if they could not be read."""
    foreign: dict[str, str] = {}
    """SHA-256 of imported files that belong to no installed distribution, by path."""
    modified: tuple[str, ...] = ()
    """Imported files that differ from those of their distribution."""


class PeakMeasured(Event):
    """The peak rates of a rank's device, measured before the training.

    A replica's first rank writes the records of all ranks.
    """

    rank: Count
    peak: DevicePeak


class TimeSpent(Event):
    """Wall seconds of the trainer by phase since the last such record of this file."""

    trial: str | None
    seconds: dict[TimePhase, Time]


class CompilerFailed(Event):
    """The process that compiles the next network failed or exceeded its time limit.

    The rank compiles the network itself, which may slow down the current trial. Only the first
    rank's failure is recorded; each rank has a line in its log.
    """

    problem: str


class RanksLost(Event):
    """Ranks no longer answer: the attempt of the replica ends, and with it the current trial."""

    ranks: tuple[int, ...]
    """The lost ranks; empty if all exist but wait for each other."""
    reason: str


class Heartbeat(Event):
    """The replica is alive. Telemetry of its processes on the host of its first rank."""

    phase: TimePhase
    cpu_percent: float
    """CPU use of all processes since the last heartbeat, in percent of one core."""
    memory_bytes: Count
    """The sum of their resident sets; shared memory counts for each process."""
    storage_wait_seconds: Time = 0.0
    """Total seconds of waiting for storage that was full or unavailable."""
    storage_waiting: str = ""
    """The storage operation that it waits for now; empty if it does not wait."""


class PrimaryDigestSeen(Event):
    """The digest of the primary's journal that the primary had published by then."""

    digest: JournalDigest


class TelemetryStarted(Event):
    """A process began to sample its node, for which no other process of the run does.

    A replica's trainer writes it for its own node; the first rank of each other node of the replica
    writes it with its samples to a journal of its own.
    """

    equipment: Equipment


class TelemetrySampled(Event):
    """A node's use and energy since the previous sample of the same journal."""

    type: Literal["telemetry"] = "telemetry"
    sample: TelemetrySample


class ReplicaEnded(Event):
    """The replica shut down cleanly."""

    reason: str
