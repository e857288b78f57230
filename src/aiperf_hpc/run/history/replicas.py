"""A replica of a run, as the records of the primary and its own describe it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from aiperf_hpc.run import records
from aiperf_hpc.run.clocks import Clocks
from aiperf_hpc.run.history.tail import fence
from aiperf_hpc.run.paths import Incarnation
from aiperf_hpc.system.description import NodeDescription, RankDescription
from aiperf_hpc.trial import DatasetInfo, DevicePeak, JobPhase, Machine, TimePhase


@dataclass(slots=True)
class ReplicaHistory:
    """One replica so far."""

    id: str
    all_started: list[tuple[float, records.ReplicaStarted]] = field(default_factory=list)
    """The start of each attempt in the order of its records, with its UTC seconds."""
    described: dict[int, RankDescription] = field(default_factory=dict)
    """What the ranks of its latest life told of themselves, by their numbers."""
    nodes: dict[Incarnation, list[NodeDescription]] = field(default_factory=dict)
    """What each of its lives told of its nodes."""
    peaks: dict[int, DevicePeak] = field(default_factory=dict)
    """What the ranks of its latest life measured of their devices, by their numbers."""
    dataset: DatasetInfo | None = None
    loads: list[tuple[float, float]] = field(default_factory=list)
    """When each of its lives had read the dataset, UTC seconds, and how many seconds of that the
    copy to the node took."""
    memory_limit: int | None = None
    """Bytes that a training may take on each of its ranks, as last recorded."""
    memory_holds_copies: bool = False
    """Whether they are for the copies of best epochs, too."""
    staged_bytes: int = 0
    """Bytes of the dataset that all its lives brought to the node; 0 where none did."""
    baseline: records.BaselineMeasured | None = None
    """What a predictor reached that has learnt nothing, as its latest life measured it."""
    last_utc: float = 0.0
    phase: TimePhase = TimePhase.START
    heartbeat: records.Heartbeat | None = None
    alive_utc: float = 0.0
    """When its latest life last said that it is alive, UTC seconds."""
    longest_silence: float = 0.0
    """The most seconds between two such words of one life."""
    clocks: list[Clocks] = field(default_factory=list)
    """What its latest life read of all clocks of its host."""
    work: dict[int, int] = field(default_factory=dict)
    """The operations credited to it in each window, by the number of windows since 1970."""
    seconds: dict[TimePhase, float] = field(default_factory=dict)
    trials: list[str] = field(default_factory=list)
    exit_status: int | None = None
    job: str | None = None
    """The launcher's name for its job."""
    job_state: records.JobState | None = None
    job_utc: float = 0.0
    """When the job's state was recorded, UTC seconds."""
    submitted_utc: float | None = None
    """When the scheduler first took its job, UTC seconds by the scheduler's clock."""
    granted_utc: float | None = None
    """When the scheduler first gave it its nodes, likewise."""
    began_utc: float | None = None
    """When the process of its first life began, UTC seconds by its node's clock."""
    ready_utc: float | None = None
    """Since when its latest life could train and waits for the run's clock, UTC seconds."""
    waited: dict[TimePhase, float] = field(default_factory=dict)
    """Seconds of its trainer by phase before the run's clock started: they are not charged."""
    ended: str | None = None
    ended_utc: float = -math.inf
    """When it last ended in order, UTC seconds."""
    checked: records.NodeChecked | None = None
    """What the primary found about its node."""
    starts: dict[Incarnation, float] = field(default_factory=dict)
    """When each of its lives started, UTC seconds."""
    alive: dict[Incarnation, float] = field(default_factory=dict)
    """When each of its lives last said that it is alive, or that it ends, UTC seconds."""
    released_utc: float | None = None
    """When it was asked to leave the run, UTC seconds; None once it was launched again."""
    requeued: list[tuple[float, str]] = field(default_factory=list)
    """When it was found to have died and queued again, UTC seconds, and the launcher's words."""
    storage_waits: list[records.StorageWaited] = field(default_factory=list)
    step_times: list[records.StepTimes] = field(default_factory=list)
    """Where the time of its trials' steps went, if it has several ranks."""

    def adopt_primary_records(self, told: ReplicaHistory) -> None:
        """Take over what the primary's journal tells, where the replica's own were read apart."""
        self.exit_status = told.exit_status
        self.job = told.job
        self.job_state = told.job_state
        self.job_utc = told.job_utc
        self.submitted_utc = told.submitted_utc
        self.granted_utc = told.granted_utc
        self.checked = told.checked
        self.requeued = told.requeued
        self.released_utc = told.released_utc

    def fence(self, incarnation: Incarnation) -> float:
        """Return from when on a life's records do not count: a later one had started."""
        return fence(self.starts, incarnation)

    def death(self, before: float) -> str:
        """Return what the launcher said of the last death before then, behind a colon."""
        said = [detail for utc, detail in self.requeued if utc <= before and detail]
        return f": {said[-1]}" if said else ""

    @property
    def seen(self) -> str:
        """What the primary recorded that takes records of the replica; empty where nothing does.

        A node may die, or be refused, before its replica has written any: that it ran is not
        enough.
        """
        job = self.job_state
        done = job is not None and job.phase is JobPhase.DONE and not job.detail
        if self.exit_status == 0 or done:
            return "ended in order"
        return "started" if self.checked is not None else ""

    @property
    def started(self) -> records.ReplicaStarted | None:
        """The start of the latest attempt; None if there was none."""
        return self.all_started[-1][1] if self.all_started else None

    @property
    def started_utc(self) -> float | None:
        """When the latest attempt started, UTC seconds."""
        return self.all_started[-1][0] if self.all_started else None

    def started_by(self, utc: float) -> records.ReplicaStarted | None:
        """Return the latest start until a time; None if there was none."""
        until = [event for began, event in self.all_started if began <= utc]
        return until[-1] if until else None

    def note_alive(self, utc: float) -> None:
        """Take a word of its latest life."""
        self.longest_silence = max(self.longest_silence, utc - self.alive_utc)
        self.alive_utc = utc

    @property
    def storage_wait_seconds(self) -> float:
        """How long it has waited for storage, in waits that are over and in one that lasts."""
        so_far = self.heartbeat.storage_wait_seconds if self.heartbeat else 0.0
        return max(so_far, sum(wait.seconds for wait in self.storage_waits))

    @property
    def storage_waiting(self) -> str:
        """What storage it waits for now, as it last said; empty when it does not."""
        return self.heartbeat.storage_waiting if self.heartbeat and self.ended is None else ""

    @property
    def several_ranks(self) -> bool:
        return self.started is not None and len(self.started.hosts) > 1

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return max(0, len(self.starts) - 1)

    @property
    def machine(self) -> Machine | None:
        return self.started.machine if self.started else None
