"""The records of a run's journals.

Each record has the UTC time and the monotonic time of the host that wrote it, in seconds, and
its number within its file. A record says what happened; nothing is ever rewritten.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from aiperf_hpc.objective import ACCURACY, MEASURES, unknown_measure
from aiperf_hpc.run.clocks import Clocks
from aiperf_hpc.run.file_clock import ClockReading, Time
from aiperf_hpc.run.heads import Head
from aiperf_hpc.run.statements import Statement
from aiperf_hpc.run.storage import Wait
from aiperf_hpc.system.description import RankDescription
from aiperf_hpc.telemetry.values import Equipment, Sample
from aiperf_hpc.trial import (
    DatasetInfo,
    DevicePeak,
    Hyperparameters,
    JobPhase,
    Machine,
    Morphisms,
    RoundPhase,
    StepPart,
    TimePhase,
    TrialState,
    Value,
)
from aiperf_hpc.untrusted.bounds import (
    MOST_HOURS,
    MOST_NODES,
    SHA256,
    Count,
    Finite,
    Name,
    Number,
    Utc,
)

TIME_OVER = "the run's time is over"
"""Why a run and its replicas end once it has lasted as long as it was to."""
TRAININGS_DONE = "the trainings that were asked for are done"
"""Why a replica ends that has trained as often as it was to, and the run with the last of them."""

Duration = Annotated[Time, Field(ge=0)]

ClockStarts = Literal["now", "first", "all"]
"""What starts the clock of a run: that a primary takes it in hand, that the first replica's node is
granted, or that all replicas are ready to train (docs/decisions/clock.md)."""


class Event(Value):
    """Base of what can be recorded. ``type`` tells the events apart."""


class FileProblem(Event):
    """A file that is read back is damaged or gone, and what was done without it.

    A replica's trainer writes it, and the primary. What the primary says of a file of a replica is
    that a journal is gone.
    """

    type: Literal["file_problem"] = "file_problem"
    file: str
    """The file's path below the run directory."""
    problem: str
    remedy: str


# The primary's.


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
    heads: Head
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
    head: Head
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


# The primary's and a replica's trainer's.


class StorageWaited(Event):
    """Its writer waited for storage that was full or away, and no longer does."""

    type: Literal["storage_waited"] = "storage_waited"
    began_utc: Time
    seconds: Duration
    why: str
    """What could not be done, and what storage answered."""

    @classmethod
    def of(cls, wait: Wait) -> StorageWaited:
        return cls(began_utc=wait.began_utc, seconds=wait.seconds, why=wait.why)


class SystemDescribed(Event):
    """What a rank is and runs on, or the primary; the first rank of each host tells of the node.

    A replica's first rank writes it for all of them.
    """

    type: Literal["system_described"] = "system_described"
    rank: Count | None
    """The number of the rank; None for the primary."""
    description: RankDescription


class ClocksRead(Event):
    """The clocks of its writer's host: at the process's start, every hour, and at its end."""

    type: Literal["clocks_read"] = "clocks_read"
    clocks: Clocks


# A replica's trainer's.


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


class TrialStarted(Event):
    """A trial begins: its graph is being built and compiled.

    ``graph`` is the hash of the graph that is trained. It is ``parent``'s graph after
    ``morphisms``, in order; a trial of the initial graph has neither.
    """

    type: Literal["trial_started"] = "trial_started"
    trial: Name
    round: Number
    phase: RoundPhase
    graph: Name
    parent: str | None
    proposal: Name | None
    morphisms: Morphisms
    hyperparameters: Hyperparameters
    seed: int
    planned_batch_size: int | None = None
    """The batch size that was to be tried, where batches of that size are estimated not to fit in
    memory."""
    epoch_limit: Number
    resumes: str | None = None
    """The interrupted trial that this one goes on with, from its last checkpoint."""
    first_epoch: Number = 1
    parameters: Count
    depth: Count
    train_operations: Count
    """Analytical operations credited for one training sample, forward and backward."""
    validation_operations: Count
    """Analytical operations credited for one validation sample, forward only."""
    memory_estimate_bytes: Count
    notes: tuple[str, ...] = ()


class ProposalRejected(Event):
    """A candidate could not be loaded; no trial will take it."""

    type: Literal["proposal_rejected"] = "proposal_rejected"
    proposal: str
    reason: str


class TrainingStarted(Event):
    """The trial's graph is built; the first step comes next."""

    type: Literal["training_started"] = "training_started"
    trial: str


class Calibrated(Event):
    """What a morphism inserted was fitted to the first batch, so that nothing changed on it.

    ``samples`` of it were executed forward, which is not credited, and are trained on next.
    """

    type: Literal["calibrated"] = "calibrated"
    trial: str
    layers: tuple[str, ...]
    """The names of the normalisations that were fitted."""
    samples: Number


class Progress(Event):
    """Samples executed since the trial's last progress record; these are what is credited."""

    type: Literal["progress"] = "progress"
    trial: str
    epoch: Number
    train_samples: Count
    validation_samples: Count


class Evaluated(Event):
    """One epoch and its complete evaluation over the validation samples."""

    type: Literal["evaluated"] = "evaluated"
    trial: str
    epoch: Number
    learning_rate: float
    train_loss: float
    validation_loss: float
    measure: str = ACCURACY.name
    """The name of the measure of quality."""
    sums: dict[str, Finite] = Field(default_factory=dict)
    """The measure's sums over the validation samples, by its names."""
    samples: Number
    correct: Count | None = Field(None, exclude=True)
    """The sum that was recorded when accuracy was the only measure; it is among ``sums`` now."""

    # One validator, after the fields: one before them would have each line made a dict first, and
    # a large run has as many of these records as epochs.
    @model_validator(mode="after")
    def _has_the_sums_of_its_measure(self) -> Self:
        values = self.__dict__  # The record is frozen for everybody else.
        if (correct := values["correct"]) is not None:
            values["sums"] = {"correct": float(correct)}
            values["correct"] = None
        _check_sums(values["measure"], values["sums"], values["samples"])
        return self

    @property
    def quality(self) -> float:
        """The quality by the record's measure."""
        return MEASURES[self.measure].quality(self.sums, self.samples)


def _check_sums(name: str, sums: dict[str, float], samples: int) -> None:
    """Raise ValueError unless a measure can have these sums over so many samples."""
    measure = MEASURES.get(name)
    if measure is None:
        raise ValueError(unknown_measure(name))
    if sums.keys() != measure.names or measure.impossible(sums, samples):
        measure.check(sums, samples)  # Says what is wrong.


class BaselineMeasured(Event):
    """What a predictor reaches on the validation samples that has learnt nothing.

    Which predictor that is, the measure says (``Measure.baseline``). Once in each life of a
    replica that searches for no network, behind its first evaluation.
    """

    type: Literal["baseline_measured"] = "baseline_measured"
    measure: str
    """The name of the measure of quality."""
    sums: dict[str, Finite]
    """The measure's sums over the validation samples, by its names."""
    samples: Number

    @model_validator(mode="after")
    def _has_the_sums_of_its_measure(self) -> Self:
        _check_sums(self.measure, self.sums, self.samples)
        return self

    @property
    def quality(self) -> float:
        """The quality by the record's measure."""
        return MEASURES[self.measure].quality(self.sums, self.samples)


class TrialEnded(Event):
    """A trial is over; ``predicted_accuracy`` is the warm-up extrapolation."""

    type: Literal["trial_ended"] = "trial_ended"
    trial: str
    state: TrialState
    reason: str
    predicted_accuracy: float | None
    checkpoint: bool
    """Whether the trained weights were kept and children may grow from them."""


class PredictionsKept(Event):
    """What a trial's network predicted in its last complete evaluation is in a file."""

    type: Literal["predictions_kept"] = "predictions_kept"
    trial: str
    epoch: Number
    samples: Number
    sha256: str
    """Of the file, in hexadecimal."""


class KeptFile(Value):
    """A file, as it was when it was stored."""

    bytes: Count
    sha256: Annotated[str, Field(pattern=SHA256)]


class BestEpochKept(Event):
    """The epoch of a trial's best evaluation can be executed again from two checkpoints.

    Another best evaluation of the same trial there is not: it is over.
    """

    type: Literal["best_epoch_kept"] = "best_epoch_kept"
    trial: str
    epoch: Annotated[int, Field(ge=1)]
    began: KeptFile
    """With what the epoch began: weights and the optimizer's state."""
    evaluated: KeptFile
    """The weights that were evaluated at its end."""


class BestEpochDropped(Event):
    """The two checkpoints of a trial's best epoch were deleted, for room."""

    type: Literal["best_epoch_dropped"] = "best_epoch_dropped"
    trial: str


class CheckpointDropped(Event):
    """A trial's trained weights were deleted; it can no longer be a parent."""

    type: Literal["checkpoint_dropped"] = "checkpoint_dropped"
    trial: str


class TimeSpent(Event):
    """Wall seconds of the trainer by phase since the last such record of this file."""

    type: Literal["time_spent"] = "time_spent"
    trial: str | None
    seconds: dict[TimePhase, Time]


class StepTimes(Event):
    """Where the time of a trial's training steps went, on a replica of several ranks.

    Wall seconds of all steps together, as the mean over the ranks.
    """

    type: Literal["step_times"] = "step_times"
    trial: str
    collective: str
    ranks: Annotated[int, Field(ge=2)]
    steps: Number
    seconds: dict[StepPart, Time]


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
    head: Head


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


# A search worker's.


class SearchStarted(Event):
    """A search worker is there."""

    type: Literal["search_started"] = "search_started"
    replica: Name
    worker: int
    pid: int
    searcher: str


class Proposed(Event):
    """A candidate is on the shared directory: its graph, and its weights from its parent."""

    type: Literal["proposed"] = "proposed"
    proposal: Name
    graph: Name
    parent: str
    """The trial that it grows from."""
    morphisms: Morphisms
    seed: int
    """The seed of the generator that made the morphisms' and the weights' random choices."""
    seconds: Time
    belief: dict[str, float] = {}
    """What the searcher predicted, e.g. mean, deviation and acquisition."""


class SearchFailed(Event):
    """A candidate could not be made, or not as it should be; the worker goes on."""

    type: Literal["search_failed"] = "search_failed"
    reason: str
    lost_parent: str | None = None
    """The trial whose trained weights are gone or damaged: it can no longer be a parent."""


class SearchEnded(Event):
    """The search worker stopped in order."""

    type: Literal["search_ended"] = "search_ended"
    reason: str


# In heads.jsonl, which the primary writes.


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
    """SHA-256 over the heads of the journals that have grown (``run/heads.py``)."""


# The digest's, which the primary writes for search workers.


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


AnyEvent = Annotated[
    FileProblem
    | RunStarted
    | ClockStarted
    | ReplicaLaunched
    | NodesAsked
    | NodesRefused
    | ReplicaReleased
    | ReplicaExited
    | JobState
    | NodeChecked
    | SchedulerState
    | PrimaryFailed
    | TakenOver
    | PrimaryHeartbeat
    | HeadsTaken
    | Witnessed
    | TimeStamped
    | WitnessState
    | StopRequested
    | RunEnded
    | StorageWaited
    | SystemDescribed
    | ClocksRead
    | ReplicaStarted
    | ReplicaReady
    | ClockSeen
    | PeakMeasured
    | DatasetLoaded
    | TrialStarted
    | ProposalRejected
    | TrainingStarted
    | Calibrated
    | Progress
    | Evaluated
    | BaselineMeasured
    | TrialEnded
    | PredictionsKept
    | BestEpochKept
    | BestEpochDropped
    | CheckpointDropped
    | TimeSpent
    | StepTimes
    | CompilerFailed
    | RanksLost
    | Heartbeat
    | PrimaryHeadSeen
    | TelemetryStarted
    | TelemetrySampled
    | ReplicaEnded
    | SearchStarted
    | Proposed
    | SearchFailed
    | SearchEnded
    | JournalHeads
    | TrialSummary
    | ProposalSummary,
    Field(discriminator="type"),
]


class Record(Value):
    """One line of a journal."""

    v: Literal[1] = 1
    seq: Count
    utc: Utc
    mono: Time
    event: AnyEvent


RECORD: TypeAdapter[Record] = TypeAdapter(Record)
