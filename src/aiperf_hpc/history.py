"""A run as its journals tell it: the records replayed into trials, replicas and proposals.

The one read model: search workers, the status, the report, the score and the verification all
read a ``RunHistory``. Replaying is incremental; ``refresh`` reads only what was added.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aiperf_hpc import records
from aiperf_hpc.journal import JournalReader, Problem
from aiperf_hpc.paths import FIRST, Incarnation, RunPaths
from aiperf_hpc.records import Record
from aiperf_hpc.trial import DatasetInfo, Machine, TimePhase, TrialState


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A complete evaluation and when it ended, UTC seconds."""

    utc: float
    trial: str
    result: records.Evaluated

    @property
    def accuracy(self) -> float:
        return self.result.accuracy

    @property
    def error(self) -> float:
        """1 - accuracy."""
        return self.result.error


@dataclass(frozen=True, slots=True)
class Execution:
    """Samples that were executed, and when that was recorded, UTC seconds."""

    utc: float
    trial: str
    epoch: int
    train_samples: int
    validation_samples: int


@dataclass(slots=True)
class Trial:
    """One trial so far."""

    replica: str
    started: records.TrialStarted
    started_utc: float
    state: TrialState = TrialState.COMPILING
    training_utc: float | None = None
    ended: records.TrialEnded | None = None
    ended_utc: float | None = None
    evaluations: list[Evaluation] = field(default_factory=list)
    train_samples: int = 0
    validation_samples: int = 0
    has_checkpoint: bool = False
    incarnation: Incarnation = FIRST
    interrupted: str = ""
    """Why it will never end: its replica died."""

    @property
    def id(self) -> str:
        return self.started.trial

    @property
    def best(self) -> Evaluation | None:
        """The evaluation with the highest accuracy, the earliest of equals."""
        return max(self.evaluations, key=lambda e: e.accuracy, default=None)

    @property
    def merit(self) -> float | None:
        """The accuracy the search goes by: the predicted one where there is one."""
        best = self.best
        if best is None:
            return None
        predicted = self.ended.predicted_accuracy if self.ended else None
        return best.accuracy if predicted is None else predicted

    @property
    def reason(self) -> str:
        return self.ended.reason if self.ended else self.interrupted


@dataclass(slots=True)
class Replica:
    """One replica so far."""

    id: str
    started: records.ReplicaStarted | None = None
    started_utc: float | None = None
    dataset: DatasetInfo | None = None
    last_utc: float = 0.0
    phase: TimePhase = TimePhase.START
    heartbeat: records.Heartbeat | None = None
    seconds: dict[TimePhase, float] = field(default_factory=dict)
    trials: list[str] = field(default_factory=list)
    exit_status: int | None = None
    job: str | None = None
    """The launcher's name for its job."""
    job_state: records.JobState | None = None
    job_utc: float = 0.0
    """When that was recorded, UTC seconds."""
    ended: str | None = None
    checked: records.NodeChecked | None = None
    """What the primary found about its node."""
    starts: dict[Incarnation, float] = field(default_factory=dict)
    """When each of its lives started, UTC seconds."""

    def fence(self, incarnation: Incarnation) -> float:
        """Return from when on a life's records do not count: a later one had started."""
        later = (utc for other, utc in self.starts.items() if other > incarnation)
        return min(later, default=math.inf)

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return max(0, len(self.starts) - 1)

    @property
    def machine(self) -> Machine | None:
        return self.started.machine if self.started else None


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate that a search worker put on the shared directory."""

    utc: float
    replica: str
    proposed: records.Proposed

    @property
    def id(self) -> str:
        return self.proposed.proposal


@dataclass(slots=True)
class _Source:
    reader: JournalReader
    replica: str | None
    """None for the primary's journal."""
    incarnation: Incarnation = FIRST
    count: int = 0
    applied_utc: float = -math.inf
    """The latest time of a record that counts."""


class RunHistory:
    """What a run's journals say, up to the last ``refresh``."""

    def __init__(
        self,
        paths: RunPaths,
        starts: dict[str, dict[Incarnation, float]] | None = None,
        *,
        replica: str | None = None,
    ) -> None:
        """Begin with nothing read.

        Args:
            paths: the run.
            starts: when lives of replicas started, as far as that is known already.
            replica: the one replica whose journals are read; all when not given. The primary's
                journal is read either way.
        """
        self.paths = paths
        self._only = replica
        self.run_started: Record | None = None
        self.run_ended: Record | None = None
        self.run_starts: list[tuple[float, records.RunStarted]] = []
        """Every primary that took the run in hand, and when, UTC seconds."""
        self.stop_requests: list[records.StopRequested] = []
        self.scheduler_problem: str | None = None
        """What the scheduler's client says while the scheduler does not answer."""
        self.primary_utc: float | None = None
        self.last_utc: float = 0.0
        self.replicas: dict[str, Replica] = {}
        self.trials: dict[str, Trial] = {}
        self.executions: list[Execution] = []
        self.proposals: dict[str, Proposal] = {}
        self.search_failures: list[str] = []
        self.rejected: dict[str, str] = {}
        """Proposals that could not be loaded, and why."""
        self.orphans: list[Problem] = []
        """Records of trials that no record of their replica started, or that two started."""
        self.fenced = 0
        """Records of replicas that ran on after they had been replaced: they do not count."""
        self._sources: dict[Path, _Source] = {}
        self._starts = {} if starts is None else starts
        self._open: dict[str, Trial] = {}
        self._stale = False

    @property
    def start_utc(self) -> float | None:
        """When the run's clock started, UTC seconds."""
        return self.run_started.utc if self.run_started else None

    @property
    def end_utc(self) -> float | None:
        """When the run's clock stopped, UTC seconds."""
        return self.run_ended.utc if self.run_ended else None

    @property
    def last_start(self) -> records.RunStarted:
        """What the latest primary said of itself. Raises IndexError before the first."""
        return self.run_starts[-1][1]

    @property
    def problems(self) -> list[Problem]:
        """Everything in the journals that is not a record in its place."""
        found = [p for source in self._sources.values() for p in source.reader.problems]
        return found + self.orphans

    @property
    def torn(self) -> list[Path]:
        """The journals that end in an unfinished line."""
        return [path for path, source in self._sources.items() if source.reader.torn]

    @property
    def bytes_read(self) -> dict[Path, int]:
        """How much of each journal was read so far: whole lines, in bytes."""
        return {path: source.reader.offset for path, source in self._sources.items()}

    @property
    def record_count(self) -> int:
        """How many records were read from all journals."""
        return sum(source.count for source in self._sources.values())

    @property
    def evaluations(self) -> list[Evaluation]:
        """All complete evaluations in order of time."""
        found = [e for trial in self.trials.values() for e in trial.evaluations]
        return sorted(found, key=lambda e: (e.utc, e.trial, e.result.epoch))

    @property
    def best(self) -> Evaluation | None:
        """The evaluation with the highest accuracy, the earliest of equals."""
        return max(self.evaluations, key=lambda e: e.accuracy, default=None)

    @property
    def graphs(self) -> set[str]:
        """The hashes of the graphs that trials trained."""
        return {trial.started.graph for trial in self.trials.values()}

    def descent(self, trial: str) -> records.TrialStarted | None:
        """Return where a trial's graph comes from, or None when the trial is unknown."""
        known = self.trials.get(trial)
        return None if known is None else known.started

    def pending(self, replica: str) -> list[Proposal]:
        """Return a replica's proposals that wait for a trial, oldest first."""
        taken = {trial.started.proposal for trial in self.trials.values()} | self.rejected.keys()
        waiting = (p for p in self.proposals.values() if p.replica == replica and p.id not in taken)
        return sorted(waiting, key=lambda p: (p.utc, p.id))

    def refresh(self, replica: str | None = None) -> None:
        """Read what was added to the journals, of one replica or of all.

        Raises:
            JournalError: a journal is unreadable.
        """
        self._discover(replica)
        for source in self._sources.values():
            if replica is not None and source.replica != replica:
                continue
            for record in source.reader.read():
                source.count += 1
                self._take(record, source)
        if self._stale:
            # A later life of a replica became visible after records that it fences off were
            # applied. That is rare: start over, with all fences known from the beginning.
            fresh = RunHistory(self.paths, self._starts, replica=self._only)
            fresh.refresh()
            vars(self).update(vars(fresh))
        self._interrupt()

    def _discover(self, replica: str | None) -> None:
        for path in self._journals(replica):
            if path in self._sources:
                continue
            if path == self.paths.primary_journal:
                self._sources[path] = _Source(JournalReader(path), None)
                continue
            folder = path.parent
            try:
                incarnation = Incarnation.parse(folder.name)
            except ValueError:
                continue  # Not a folder of ours.
            self._sources[path] = _Source(JournalReader(path), folder.parent.name, incarnation)

    def _journals(self, replica: str | None) -> Iterator[Path]:
        if replica is None and self._only is not None:
            yield self.paths.primary_journal
        yield from self.paths.journals(replica or self._only)

    def _take(self, record: Record, source: _Source) -> None:
        """Apply a record, unless its replica had been replaced when it was written."""
        if source.replica is not None:
            replica = self._replica(source.replica)
            if isinstance(record.event, records.ReplicaStarted):
                self._started(source, record.utc)
            if record.utc >= replica.fence(source.incarnation):
                self.fenced += 1
                return
            source.applied_utc = max(source.applied_utc, record.utc)
        self._apply(record, source)

    def _started(self, source: _Source, utc: float) -> None:
        assert source.replica is not None  # noqa: S101 -- for the type checker
        starts = self._starts.setdefault(source.replica, {})
        self._replica(source.replica).starts = starts
        if source.incarnation in starts:
            return
        starts[source.incarnation] = utc
        self._stale |= any(
            other.replica == source.replica
            and other.incarnation < source.incarnation
            and other.applied_utc >= utc
            for other in self._sources.values()
        )

    def _interrupt(self) -> None:
        """Give the trials of replicas that were started again their end."""
        for trial in list(self._open.values()):
            if self.replicas[trial.replica].fence(trial.incarnation) < math.inf:
                trial.state = TrialState.STOPPED
                trial.interrupted = "its replica was lost and started again"
                del self._open[trial.id]

    def _orphan(self, source: _Source, what: str) -> None:
        self.orphans.append(Problem(source.reader.path, source.reader.line, what))

    def _replica(self, name: str) -> Replica:
        if name not in self.replicas:
            self.replicas[name] = Replica(name, starts=self._starts.get(name, {}))
        return self.replicas[name]

    def _apply(self, record: Record, source: _Source) -> None:
        self.last_utc = max(self.last_utc, record.utc)
        if source.replica is None:
            self.primary_utc = record.utc
            self._apply_primary(record)
            return
        replica = self._replica(source.replica)
        replica.last_utc = max(replica.last_utc, record.utc)
        event = record.event
        if isinstance(event, records.Proposed):
            self.proposals[event.proposal] = Proposal(record.utc, source.replica, event)
        elif isinstance(event, records.SearchFailed):
            self.search_failures.append(f"{source.replica}: {event.reason}")
        elif isinstance(event, records.SearchEnded):
            if event.reason.startswith("failed"):
                self.search_failures.append(f"{source.replica}: {event.reason}")
        elif isinstance(
            event,
            records.TrainingStarted
            | records.Progress
            | records.Evaluated
            | records.TrialEnded
            | records.CheckpointDropped,
        ):
            trial = self.trials.get(event.trial)
            if trial is None or trial.replica != source.replica:
                what = f"a record of trial {event.trial}, which no record of this replica started"
                self._orphan(source, what)
                return
            self._apply_trial(record.utc, event, trial)
        elif isinstance(event, records.TrialStarted):
            if event.trial in self.trials:
                self._orphan(source, f"trial {event.trial} starts a second time")
                return
            trial = Trial(replica.id, event, record.utc, incarnation=source.incarnation)
            self.trials[event.trial] = self._open[event.trial] = trial
            replica.trials.append(event.trial)
        else:
            if isinstance(event, records.ReplicaEnded):
                self._leave(source, record.utc, event.reason)
            self._apply_replica(record, replica)

    def _leave(self, source: _Source, utc: float, reason: str) -> None:
        """End the trial that a life of a replica left open for the next one to go on with."""
        for trial in list(self._open.values()):
            if (trial.replica, trial.incarnation) == (source.replica, source.incarnation):
                trial.state, trial.ended_utc = TrialState.STOPPED, utc
                trial.interrupted = f"its replica ended: {reason}"
                del self._open[trial.id]

    def _apply_primary(self, record: Record) -> None:
        event = record.event
        match event:
            case records.RunStarted():
                self.run_started = self.run_started or record
                self.run_starts.append((record.utc, event))
                self.run_ended = None
            case records.RunEnded():
                self.run_ended = record
            case records.StopRequested():
                self.stop_requests.append(event)
            case records.ReplicaLaunched(replica=name, job=job):
                replica = self._replica(name)
                replica.exit_status, replica.job, replica.job_state = None, job, None
            case records.JobState(replica=name):
                replica = self._replica(name)
                replica.job_state, replica.job_utc = event, record.utc
            case records.NodeChecked(replica=name):
                self._replica(name).checked = event
            case records.SchedulerState(answers=answers, detail=detail):
                self.scheduler_problem = None if answers else detail
            case records.ReplicaExited(replica=name, status=status):
                self._replica(name).exit_status = status
            case _:
                pass  # Heartbeats count by their time alone.

    def _apply_replica(self, record: Record, replica: Replica) -> None:
        event = record.event
        match event:
            case records.ReplicaStarted():
                replica.started, replica.started_utc = event, record.utc
                replica.ended = None
            case records.DatasetLoaded(dataset=dataset):
                replica.dataset = dataset
            case records.ProposalRejected(proposal=proposal, reason=reason):
                self.rejected[proposal] = reason
            case records.TimeSpent(seconds=seconds):
                for phase, value in seconds.items():
                    replica.seconds[phase] = replica.seconds.get(phase, 0.0) + value
            case records.Heartbeat(phase=phase):
                replica.heartbeat, replica.phase = event, phase
            case records.ReplicaEnded(reason=reason):
                replica.ended = reason
            case _:
                pass  # A search worker's start counts by its time alone.

    def _apply_trial(
        self,
        utc: float,
        event: (
            records.TrainingStarted
            | records.Progress
            | records.Evaluated
            | records.TrialEnded
            | records.CheckpointDropped
        ),
        trial: Trial,
    ) -> None:
        match event:
            case records.TrainingStarted():
                trial.state, trial.training_utc = TrialState.TRAINING, utc
            case records.Progress():
                trial.train_samples += event.train_samples
                trial.validation_samples += event.validation_samples
                self.executions.append(
                    Execution(
                        utc, trial.id, event.epoch, event.train_samples, event.validation_samples
                    )
                )
            case records.Evaluated():
                trial.evaluations.append(Evaluation(utc, trial.id, event))
            case records.TrialEnded():
                trial.state, trial.ended, trial.ended_utc = event.state, event, utc
                trial.has_checkpoint = event.checkpoint
                self._open.pop(trial.id, None)
            case records.CheckpointDropped():
                trial.has_checkpoint = False
