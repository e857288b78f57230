"""The records of the primary: the run, its jobs, journal digests, witnesses and trial summaries."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from aiperf_hpc.run.clocks import ClockReading, Time
from aiperf_hpc.run.journal_digest import JournalDigest, Statement
from aiperf_hpc.run.records.base import ClockStarts, Event
from aiperf_hpc.trial import (
    Hyperparameters,
    JobPhase,
    Morphisms,
)
from aiperf_hpc.untrusted.bounds import (
    MOST_HOURS,
    MOST_NODES,
    Name,
    Utc,
)


class RunStarted(Event):
    """A primary took the run in hand.

    Where ``clock_starts`` is ``now`` the clock starts at the first such record's time.
    """

    type: Literal["run_started"] = "run_started"
    run_id: str
    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)]
    hours: Annotated[Time, Field(gt=0, le=MOST_HOURS)]
    launcher: str
    host: str
    pid: int
    manifest_sha256: str = ""
    """SHA-256 of ``run.yaml``, in hexadecimal."""
    clock: ClockReading | None = None
    """The primary's clock beside the file server's."""
    clock_starts: ClockStarts = "now"
    """What starts the clock; ``now`` in records of versions that knew nothing else."""


class ClockStarted(Event):
    """The clock of the run started, at ``start_utc``, which is before this record.

    Once in a run, and only where its ``clock_starts`` is not ``now``.
    """

    type: Literal["clock_started"] = "clock_started"
    start_utc: Utc
    replica: Name
    """The replica whose node was granted first, or that was ready last."""
    submitted_utc: Utc
    """When the run's nodes were asked for: the scheduler's time, or else the primary's."""
    granted_utc: Utc
    """When the first of them was granted: the scheduler's time, or else that node's."""
    problem: str = ""
    """How the scheduler's clock does not fit the nodes', where it does not."""

    @property
    def queue_seconds(self) -> float:
        """How long the first node was waited for in the queue."""
        return max(0.0, self.granted_utc - self.submitted_utc)


class ReplicaLaunched(Event):
    """The launcher accepted a replica; ``job`` is the launcher's own name for it."""

    type: Literal["replica_launched"] = "replica_launched"
    replica: Name
    job: str


class NodesAsked(Event):
    """From now on the run is to have so many nodes; before, it was to have those it started with.

    A replica beyond those counts only if this was recorded before it began.
    """

    type: Literal["nodes_asked"] = "nodes_asked"
    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)]
    why: str
    """What asked for them, e.g. ``--nodes 2-4``."""


class NodesRefused(Event):
    """What was asked for could not be had; the run is to have ``kept`` nodes, as before."""

    type: Literal["nodes_refused"] = "nodes_refused"
    nodes: Annotated[int, Field(ge=1)]
    """How many were asked for."""
    kept: Annotated[int, Field(ge=1, le=MOST_NODES)]
    reason: str


class ReplicaReleased(Event):
    """The replica was asked to end in order, or not to begin: fewer nodes are to be used."""

    type: Literal["replica_released"] = "replica_released"
    replica: Name


class ReplicaExited(Event):
    """A replica's process is gone; ``status`` is its exit status, negative for a signal."""

    type: Literal["replica_exited"] = "replica_exited"
    replica: Name
    status: int


class JobState(Event):
    """A replica's job changed, as far as its launcher knows."""

    type: Literal["job_state"] = "job_state"
    replica: Name
    phase: JobPhase
    node: str | None = None
    detail: str = ""
    """The launcher's own words, e.g. the scheduler's reason for a job that waits."""
    submitted_utc: Utc | None = None
    """When the scheduler took the job, by the scheduler's clock."""
    started_utc: Utc | None = None
    """When the scheduler gave the job its nodes, by the scheduler's clock; None while it waits."""


class NodeChecked(Event):
    """What the primary found about the node of a replica that has started."""

    type: Literal["node_checked"] = "node_checked"
    replica: Name
    host: str
    clock_ahead_seconds: Time | None
    """How far it is ahead of the primary's clock; negative when it is behind; None when it is not
    known."""
    problems: tuple[str, ...] = ()


class SchedulerState(Event):
    """The scheduler began or ceased to answer: until it does, the state of jobs is unknown."""

    type: Literal["scheduler_state"] = "scheduler_state"
    answers: bool
    detail: str = ""


class PrimaryFailed(Event):
    """The primary could not go on and ended the replicas; the run can be resumed."""

    type: Literal["primary_failed"] = "primary_failed"
    reason: str


class TakenOver(Event):
    """A command of ``aiperf`` writes on in the place of a primary that had died."""

    type: Literal["taken_over"] = "taken_over"
    command: str
    host: str
    pid: int


class PrimaryHeartbeat(Event):
    """The primary is alive."""

    type: Literal["primary_heartbeat"] = "primary_heartbeat"


class HeadsTaken(Event):
    """The heads of all journals, as far as the primary had read them, are in ``heads.jsonl``."""

    type: Literal["heads_taken"] = "heads_taken"
    heads: JournalDigest
    """The head of ``heads.jsonl`` itself, with the record of these heads as its last."""


class Witnessed(Event):
    """A witness outside was shown a head of the primary's journal, and signed it."""

    type: Literal["witnessed"] = "witnessed"
    url: str
    """Where the witness was asked."""
    key: str
    """The fingerprint of the key that signed, as the primary found it."""
    statement: Statement


class TimeStamped(Event):
    """A time-stamp authority stamped a head of the primary's journal (RFC 3161)."""

    type: Literal["time_stamped"] = "time_stamped"
    url: str
    """Where the authority was asked."""
    head: JournalDigest
    response: Annotated[str, Field(max_length=100_000)]
    """The authority's answer, a TimeStampResp in DER, in base64."""


class WitnessState(Event):
    """A witness or an authority began or ceased to answer; the run does not wait for it."""

    type: Literal["witness_state"] = "witness_state"
    url: str
    answers: bool
    detail: str = ""


class StopRequested(Event):
    """The replicas were asked to stop in order."""

    type: Literal["stop_requested"] = "stop_requested"
    reason: str


class RunEnded(Event):
    """The clock of the run stops at this record's time."""

    type: Literal["run_ended"] = "run_ended"
    reason: str


class JournalHeads(Event):
    """How far each journal had been read, and the SHA-256 of that.

    Journals are told by their numbers, in the order in which they were first named. The primary's
    own is not among them: the record of these heads is in it.
    """

    type: Literal["journal_heads"] = "journal_heads"
    anew: bool
    """Whether a primary begins here: numbers and bytes count from zero."""
    names: tuple[str, ...]
    """The journals that are named first here, below the run directory."""
    grown: tuple[int, ...]
    """By how many bytes each journal has grown since the record before."""
    marks: str
    """The first ``MARK`` digits of the head of each journal that has grown, one after the other:
    they tell which journal is not what it was."""
    sha256: str
    """SHA-256 over the heads of the journals that have grown (``run/journal_digest.py``)."""


class TrialSummary(Event):
    """What a search needs to know of a trial; a later one of the same trial replaces it."""

    type: Literal["trial_summary"] = "trial_summary"
    trial: str
    replica: Name
    graph: str
    parent: str | None
    morphisms: Morphisms
    ended: bool
    merit: float | None
    """The objective value for the search, once the trial has ended: the predicted accuracy or,
    where none was predicted, the best that was observed."""
    checkpoint: bool
    """Whether its trained weights are there."""
    hyperparameters: Hyperparameters | None = None
    """What it was trained with; None in digests from before that was said."""


class ProposalSummary(Event):
    """What a search needs to know of another's proposal."""

    type: Literal["proposal_summary"] = "proposal_summary"
    proposal: str
    replica: Name
    graph: str
    parent: str
    morphisms: Morphisms
