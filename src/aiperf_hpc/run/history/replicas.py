"""A replica of a run, as the records of the primary and its own describe it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from aiperf_hpc.run import records
from aiperf_hpc.run.clocks import Clocks
from aiperf_hpc.run.history.tail import fence
from aiperf_hpc.run.paths import Incarnation
from aiperf_hpc.system.description import NodeDescription, RankDescription
from aiperf_hpc.trial import DatasetInfo, DevicePeak, JobPhase, Machine, TimePhase

_OF_PRIMARY: Final = (
    "exit_status", "exited_utc", "job", "job_state", "job_utc", "submitted_utc", "granted_utc",
    "checked", "requeued", "released_utc",
)  # fmt: skip
"""Fields of a replica's history that follow from the primary's journal."""


@dataclass(slots=True)
class ReplicaHistory:
    """The history of one replica. Times are UTC seconds."""

    id: str
    all_started: list[tuple[float, records.ReplicaStarted]] = field(default_factory=list)
    """The time and the record of each attempt's start, in the order of reading."""
    described: dict[int, RankDescription] = field(default_factory=dict)
    """The descriptions of the latest attempt's ranks, by rank."""
    environments: list[dict[str, str]] = field(default_factory=list)
    """The distinct environment variables of all attempts' ranks."""
    nodes: dict[Incarnation, list[NodeDescription]] = field(default_factory=dict)
    """The descriptions of the nodes of each attempt."""
    modules: dict[Incarnation, dict[int, list[records.ModulesImported]]] = field(
        default_factory=dict
    )
    """The records of imported modules of each attempt, by rank."""
    peaks: dict[int, DevicePeak] = field(default_factory=dict)
    """The measured peaks of the latest attempt's devices, by rank."""
    dataset: DatasetInfo | None = None
    loads: list[tuple[float, float]] = field(default_factory=list)
    """The time at which each attempt had loaded the dataset, and the seconds of staging in it."""
    memory_limit: int | None = None
    """Bytes available for training on each rank, as last recorded."""
    memory_holds_copies: bool = False
    """Whether the limit includes the copies of best epochs."""
    staged_bytes: int = 0
    """Bytes of the dataset that all attempts staged to the node."""
    baseline: records.BaselineMeasured | None = None
    """The quality of a trivial predictor, measured by the latest attempt."""
    last_utc: float = 0.0
    phase: TimePhase = TimePhase.START
    heartbeat: records.Heartbeat | None = None
    alive_utc: float = 0.0
    """The time of the latest attempt's last heartbeat."""
    longest_silence: float = 0.0
    """The longest time between two heartbeats of one attempt, in seconds."""
    clocks: list[Clocks] = field(default_factory=list)
    """The latest attempt's readings of its host's clocks."""
    work: dict[int, int] = field(default_factory=dict)
    """The credited operations of each window, by the number of windows since 1970."""
    seconds: dict[TimePhase, float] = field(default_factory=dict)
    trials: list[str] = field(default_factory=list)
    exit_status: int | None = None
    exited_utc: float | None = None
    """The time at which the exit status was recorded."""
    job: str | None = None
    """The launcher's identifier of its job."""
    job_state: records.JobState | None = None
    job_utc: float = 0.0
    """The time at which the job's state was recorded."""
    submitted_utc: float | None = None
    """The first submission of its job, by the scheduler's clock."""
    granted_utc: float | None = None
    """The first start of its job, by the scheduler's clock."""
    began_utc: float | None = None
    """The start of the first attempt's process, by its node's clock."""
    ready_utc: float | None = None
    """The time since which the latest attempt is ready and waits for the run's clock."""
    waited: dict[TimePhase, float] = field(default_factory=dict)
    """The trainer's seconds by phase before the run's clock started, which are not charged."""
    ended: str | None = None
    ended_utc: float = -math.inf
    """The time of its last clean shutdown."""
    checked: records.NodeChecked | None = None
    """The primary's check of its node."""
    starts: dict[Incarnation, float] = field(default_factory=dict)
    """The start of each attempt."""
    alive: dict[Incarnation, float] = field(default_factory=dict)
    """The last heartbeat or the end of each attempt."""
    released_utc: float | None = None
    """The time at which it was removed from the run; None once it is launched again."""
    requeued: list[tuple[float, str]] = field(default_factory=list)
    """The time of each requeueing after a failure, and the launcher's message."""
    storage_waits: list[records.StorageWaited] = field(default_factory=list)
    step_times: list[records.StepTimes] = field(default_factory=list)
    """The time breakdown of its trials' steps, if it has several ranks."""

    def adopt_primary_records(self, other: ReplicaHistory) -> None:
        """Copy the fields that follow from the primary's journal, which was read apart."""
        for name in _OF_PRIMARY:
            setattr(self, name, getattr(other, name))

    def fence(self, incarnation: Incarnation) -> float:
        """Return the time from which an attempt's records do not count: a later one started."""
        return fence(self.starts, incarnation)

    def death(self, before: float) -> str:
        """Return the launcher's message on the last failure before a time, after a colon."""
        details = [detail for utc, detail in self.requeued if utc <= before and detail]
        return f": {details[-1]}" if details else ""

    @property
    def seen(self) -> str:
        """Evidence in the primary's records that the replica wrote a journal; empty if none.

        That its job ran is not enough: a node may fail or be refused before any record.
        """
        job = self.job_state
        done = job is not None and job.phase is JobPhase.DONE and not job.detail
        if self.exit_status == 0 or done:
            return "shut down cleanly"
        return "started" if self.checked is not None else ""

    @property
    def started(self) -> records.ReplicaStarted | None:
        """The record of the latest attempt's start."""
        return self.all_started[-1][1] if self.all_started else None

    @property
    def started_utc(self) -> float | None:
        """The time of the latest attempt's start."""
        return self.all_started[-1][0] if self.all_started else None

    def started_by(self, utc: float) -> records.ReplicaStarted | None:
        """Return the record of the latest start until a time."""
        until = [event for began, event in self.all_started if began <= utc]
        return until[-1] if until else None

    def note_alive(self, utc: float) -> None:
        """Note a heartbeat of the latest attempt."""
        self.longest_silence = max(self.longest_silence, utc - self.alive_utc)
        self.alive_utc = utc

    @property
    def storage_wait_seconds(self) -> float:
        """Total seconds of waiting for storage, including a wait that lasts."""
        so_far = self.heartbeat.storage_wait_seconds if self.heartbeat else 0.0
        return max(so_far, sum(wait.seconds for wait in self.storage_waits))

    @property
    def storage_waiting(self) -> str:
        """The storage operation that it waits for, as last recorded; empty if none."""
        return self.heartbeat.storage_waiting if self.heartbeat and self.ended is None else ""

    @property
    def several_ranks(self) -> bool:
        return self.started is not None and len(self.started.hosts) > 1

    @property
    def restarts(self) -> int:
        """The number of restarts."""
        return max(0, len(self.starts) - 1)

    @property
    def machine(self) -> Machine | None:
        return self.started.machine if self.started else None
