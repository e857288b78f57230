"""A run as its journals tell it: the records replayed into trials, replicas and proposals.

The one read model: search workers, the status, the report, the score and the verification all
read a ``RunHistory``. Replaying is incremental; ``refresh`` reads only what was added.
"""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aiperf_hpc.errors import JournalError, StorageError
from aiperf_hpc.run import records
from aiperf_hpc.run.executions import Executions
from aiperf_hpc.run.journal import JournalReader, Problem
from aiperf_hpc.run.paths import FIRST, Incarnation, RunPaths, journal_order
from aiperf_hpc.run.records import Record
from aiperf_hpc.run.storage import Retry, no_retry
from aiperf_hpc.trial import DatasetInfo, JobPhase, Machine, TimePhase, TrialState

PRIMARY = "primary"
"""Who waits for storage, where it is no replica."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A complete evaluation and when it ended, UTC seconds."""

    utc: float
    trial: str
    epoch: int
    validation_loss: float
    correct: int
    samples: int

    @property
    def accuracy(self) -> float:
        """The share of validation samples classified correctly."""
        return self.correct / self.samples

    @property
    def error(self) -> float:
        """The share classified wrongly: from the counts, since 1 - 0.7 is more than 0.3."""
        return (self.samples - self.correct) / self.samples

    def beats(self, other: Evaluation | None) -> bool:
        """Return whether its accuracy is higher, or as high and earlier."""
        if other is None or self.accuracy != other.accuracy:
            return other is None or self.accuracy > other.accuracy
        return (self.utc, self.trial, self.epoch) < (other.utc, other.trial, other.epoch)


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
    best: Evaluation | None = None
    """The evaluation with the highest accuracy, the earliest of equals."""
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
    def merit(self) -> float | None:
        """The objective value of the search: the predicted accuracy or, where none was predicted,
        the best that was observed."""
        best = self.best
        if best is None:
            return None
        predicted = self.ended.predicted_accuracy if self.ended else None
        return best.accuracy if predicted is None else predicted

    @property
    def reason(self) -> str:
        return self.ended.reason if self.ended else self.interrupted


@dataclass(slots=True)
class ReplicaHistory:
    """One replica so far."""

    id: str
    started: records.ReplicaStarted | None = None
    started_utc: float | None = None
    dataset: DatasetInfo | None = None
    memory_limit: int | None = None
    """Bytes that a training may take on each of its ranks, as last recorded."""
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
    ended_utc: float = -math.inf
    """When it last ended in order, UTC seconds."""
    checked: records.NodeChecked | None = None
    """What the primary found about its node."""
    starts: dict[Incarnation, float] = field(default_factory=dict)
    """When each of its lives started, UTC seconds."""
    requeued: list[tuple[float, str]] = field(default_factory=list)
    """When it was found to have died and queued again, UTC seconds, and the launcher's words."""
    storage_waits: list[records.StorageWaited] = field(default_factory=list)
    step_times: list[records.StepTimes] = field(default_factory=list)
    """Of its trials, where it has several ranks."""

    def fence(self, incarnation: Incarnation) -> float:
        """Return from when on a life's records do not count: a later one had started."""
        return _fence(self.starts, incarnation)

    def death(self, before: float) -> str:
        """Return what the launcher said of the last death before then, behind a colon."""
        said = [detail for utc, detail in self.requeued if utc <= before and detail]
        return f": {said[-1]}" if said else ""

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


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate that a search worker put on the shared directory."""

    utc: float
    replica: str
    proposed: records.Proposed

    @property
    def id(self) -> str:
        return self.proposed.proposal


def _fence(starts: dict[Incarnation, float], incarnation: Incarnation) -> float:
    later = (utc for other, utc in starts.items() if other > incarnation)
    return min(later, default=math.inf)


@dataclass(slots=True)
class _Source:
    reader: JournalReader
    replica: str | None
    """None for the primary's journal."""
    incarnation: Incarnation = FIRST
    applied_utc: float = -math.inf
    """The latest time of a record that counts."""
    fence: float = math.inf
    """From when on its records do not count, as far as that is known."""


@contextmanager
def no_collections(*, keep_all: bool) -> Iterator[None]:
    """Keep the garbage collector from walking all that was read before, again and again.

    Reading makes no cycles, and the collector took four fifths of the time of a large run's.

    Args:
        keep_all: count what was made meanwhile as old, as after the first reading, so that it
            is not walked at once afterwards.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if keep_all:
            gc.freeze()
            gc.unfreeze()  # To the oldest generation.
        if enabled:
            gc.enable()


class RunHistory:
    """What a run's journals say, up to the last ``refresh``."""

    def __init__(
        self,
        paths: RunPaths,
        starts: dict[str, dict[Incarnation, float]] | None = None,
        *,
        replica: str | None = None,
        retry: Retry = no_retry,
    ) -> None:
        """Begin with nothing read.

        Args:
            paths: the run.
            starts: when lives of replicas started, as far as that is known already.
            replica: the one replica whose journals are read; all when not given. The primary's
                journal is read either way.
            retry: how to read; a BackoffRetry waits while the storage is away.
        """
        self.paths = paths
        self._only = replica
        self._retry = retry
        self.lock = threading.RLock()
        """Held while the journals are read, and by a thread that reads this while others do."""
        self.rebuilt = 0
        """How often everything was read again from the beginning."""
        self.run_started: Record | None = None
        self.run_ended: Record | None = None
        self.run_starts: list[tuple[float, records.RunStarted]] = []
        """Every primary that took the run in hand, and when, UTC seconds."""
        self.stop_requests: list[records.StopRequested] = []
        self.primary_failure: str | None = None
        """Why the latest primary could not go on, if it said so."""
        self.storage_waits: list[tuple[str, records.StorageWaited]] = []
        """Who waited for storage, a replica's name or ``primary``, in the order of reading."""
        self.scheduler_problem: str | None = None
        """What the scheduler's client says while the scheduler does not answer."""
        self.primary_utc: float | None = None
        self.last_utc: float = 0.0
        self.replicas: dict[str, ReplicaHistory] = {}
        self.trials: dict[str, Trial] = {}
        self.ended: list[Trial] = []
        """The trials that ended, in the order in which that was read."""
        self.executions = Executions()
        self.proposals: dict[str, Proposal] = {}
        self.searchers: set[str] = set()
        """The names of the searchers that search workers used."""
        self.search_failures: list[str] = []
        self.rejected: dict[str, str] = {}
        """Proposals that could not be loaded, and why."""
        self.file_problems: list[str] = []
        """Files that were found damaged or gone, and what was done without them."""
        self.orphans: list[Problem] = []
        """Records of trials that no record of their replica started, or that two started; and
        journals in no life's folder."""
        self.fenced = 0
        """Records of replicas that ran on after they had been replaced: they do not count."""
        self._fenced_trials: dict[str, records.TrialStarted] = {}
        self.best: Evaluation | None = None
        """The evaluation with the highest accuracy, the earliest of equals."""
        self._evaluated_utc = -math.inf
        self._sources: dict[Path, _Source] = {}
        self._sources_of: dict[str, list[_Source]] = {}
        self._known: set[str] = set()
        """The journals that were found, and other files that are none."""
        self._waiting: dict[str, dict[str, Proposal]] = {}
        """The proposals of each replica that no trial has taken."""
        self._taken: set[str] = set()
        self._lost: set[str] = set()
        """Trials whose trained weights were found gone or damaged."""
        self._starts = {} if starts is None else starts
        self._open: dict[str, Trial] = {}
        self._stale = False
        self._replaced = False
        """Whether any life of a replica is known to have been replaced."""

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
    def lost(self) -> str:
        """Why what a journal said before is no longer there; empty while all of it is."""
        return next((s.reader.lost for s in self._sources.values() if s.reader.lost), "")

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
        return sum(source.reader.count for source in self._sources.values())

    @property
    def evaluations(self) -> list[Evaluation]:
        """All complete evaluations in order of time."""
        found = [e for trial in self.trials.values() for e in trial.evaluations]
        return sorted(found, key=lambda e: (e.utc, e.trial, e.epoch))

    def best_until(self, utc: float) -> Evaluation | None:
        """Return the best complete evaluation up to ``utc``, UTC seconds."""
        if self._evaluated_utc <= utc:
            return self.best
        best: Evaluation | None = None
        for trial in self.trials.values():
            for evaluation in trial.evaluations:
                if evaluation.utc <= utc and evaluation.beats(best):
                    best = evaluation
        return best

    @property
    def graphs(self) -> set[str]:
        """The hashes of the graphs that trials trained."""
        return {trial.started.graph for trial in self.trials.values()}

    def descent(self, trial: str) -> records.TrialStarted | None:
        """Return where a trial's graph comes from, or None when the trial is unknown.

        A trial that does not count has a graph too: others may have grown from it before its
        replica was known to be replaced.
        """
        known = self.trials.get(trial)
        return self._fenced_trials.get(trial) if known is None else known.started

    def pending(self, replica: str) -> list[Proposal]:
        """Return a replica's proposals that wait for a trial, oldest first."""
        waiting = self._waiting.get(replica, {})
        return sorted(waiting.values(), key=lambda p: (p.utc, p.id))

    def stock(self, replica: str) -> int:
        """Return how many of a replica's proposals wait for a trial."""
        return len(self._waiting.get(replica, ()))

    def refresh(self, replica: str | None = None) -> None:
        """Read what was added to the journals, of one replica or of all.

        Raises:
            JournalError: a journal is unreadable.
        """
        with self.lock, no_collections(keep_all=not self._sources):
            self._discover(replica)
            all_of = self._sources.values() if replica is None else self._sources_of.get(replica)
            for source in all_of or ():
                self._follow(source)
            if self._stale:
                self._rebuild()
            self._interrupt()

    def _rebuild(self) -> None:
        """Start over, with all fences known from the beginning.

        A later life of a replica became visible after records that it fences off were applied.
        That is rare.
        """
        fresh = RunHistory(self.paths, self._starts, replica=self._only, retry=self._retry)
        fresh.refresh()
        vars(self).update(vars(fresh) | {"lock": self.lock, "rebuilt": self.rebuilt + 1})

    def _discover(self, replica: str | None) -> None:
        where = f"the journals of {self.paths.root}"
        try:
            found = self._retry(lambda: list(self._files(replica)), where, "look for")
        except StorageError as error:
            raise JournalError(str(error)) from None
        new = [path for path in found if path not in self._known]
        self._known.update(new)
        for path in sorted(map(Path, new), key=journal_order):
            self._add_source(path)

    def _files(self, replica: str | None) -> Iterator[str]:
        if replica is None and self._only is not None:
            yield str(self.paths.primary_journal)
        yield from self.paths.journal_files(replica or self._only)

    def _add_source(self, path: Path) -> None:
        if path == self.paths.primary_journal:
            self._sources[path] = _Source(JournalReader(path, retry=self._retry), None)
            return
        folder = path.parent
        try:
            incarnation = Incarnation.parse(folder.name)
        except ValueError:
            what = "this journal is in no folder of a replica's life: nothing in it counts"
            self.orphans.append(Problem(path, 1, what))
            return
        name = folder.parent.name
        fence = _fence(self._starts.get(name, {}), incarnation)
        source = _Source(JournalReader(path, retry=self._retry), name, incarnation, fence=fence)
        self._sources[path] = source
        self._replaced |= fence < math.inf
        self._sources_of.setdefault(name, []).append(source)

    def _follow(self, source: _Source) -> None:
        """Apply what was added to a journal, but for what a replaced replica wrote."""
        if source.replica is None:
            for record in source.reader.read():
                self.last_utc = max(self.last_utc, record.utc)
                self.primary_utc = record.utc
                self._apply_primary(record)
            return
        for record in source.reader.read():
            utc, event = record.utc, record.event
            replica = self._replica(source.replica)
            if type(event) is records.ReplicaStarted:
                self._started(source, utc)
            if utc >= source.fence:
                self.fenced += 1
                if type(event) is records.TrialStarted:
                    self._fenced_trials.setdefault(event.trial, event)
                continue
            if utc > source.applied_utc:
                source.applied_utc = utc
                if utc > replica.last_utc:
                    replica.last_utc = utc
                if utc > self.last_utc:
                    self.last_utc = utc
            apply = _APPLY.get(type(event))
            if apply is not None:  # A search worker's start counts by its time alone.
                apply(self, utc, event, replica, source)

    def _started(self, source: _Source, utc: float) -> None:
        assert source.replica is not None  # noqa: S101 -- for the type checker
        starts = self._starts.setdefault(source.replica, {})
        self._replica(source.replica).starts = starts
        if source.incarnation in starts:
            return
        starts[source.incarnation] = utc
        for other in self._sources_of[source.replica]:
            other.fence = _fence(starts, other.incarnation)
            self._replaced |= other.fence < math.inf
            self._stale |= other.incarnation < source.incarnation and other.applied_utc >= utc

    def _interrupt(self) -> None:
        """Give the trials of replicas that were started again their end."""
        if not self._replaced:
            return
        for trial in list(self._open.values()):
            replica = self.replicas[trial.replica]
            fence = replica.fence(trial.incarnation)
            if fence < math.inf:
                # A rank that dies takes the others with it, and is a failure of the trial.
                failed = replica.several_ranks
                trial.state = TrialState.FAILED if failed else TrialState.STOPPED
                trial.interrupted = f"its replica was lost and started again{replica.death(fence)}"
                del self._open[trial.id]

    def _orphan(self, source: _Source, what: str) -> None:
        self.orphans.append(Problem(source.reader.path, source.reader.line, what))

    def _replica(self, name: str) -> ReplicaHistory:
        replica = self.replicas.get(name)
        if replica is None:
            replica = self.replicas[name] = ReplicaHistory(name, starts=self._starts.get(name, {}))
        return replica

    def _trial(self, name: str, replica: ReplicaHistory, source: _Source) -> Trial | None:
        """Return a replica's trial; None, and a problem, if it started none of that name."""
        trial = self.trials.get(name)
        if trial is None or trial.replica != replica.id:
            what = f"a record of trial {name}, which no record of this replica started"
            self._orphan(source, what)
            return None
        return trial

    def _trial_started(
        self, utc: float, event: records.TrialStarted, replica: ReplicaHistory, source: _Source
    ) -> None:
        if event.trial in self.trials:
            self._orphan(source, f"trial {event.trial} starts a second time")
            return
        trial = Trial(replica.id, event, utc, incarnation=source.incarnation)
        self.trials[event.trial] = self._open[event.trial] = trial
        replica.trials.append(event.trial)
        if event.proposal is not None:
            self._take_proposal(event.proposal)

    def _take_proposal(self, name: str) -> None:
        """Let a proposal wait no more, also when it is yet to be read."""
        self._taken.add(name)
        if name in self.proposals:
            self._waiting[self.proposals[name].replica].pop(name, None)

    def _leave(
        self, replica: ReplicaHistory, source: _Source, utc: float, state: TrialState, reason: str
    ) -> None:
        """End the trial that a life of a replica left open for the next one to go on with."""
        for name in replica.trials:
            trial = self._open.get(name)
            if trial is not None and trial.incarnation == source.incarnation:
                trial.state = state
                trial.ended_utc = utc
                trial.interrupted = reason
                del self._open[name]

    def _apply_primary(self, record: Record) -> None:
        event = record.event
        match event:
            case records.RunStarted():
                self.run_started = self.run_started or record
                self.run_starts.append((record.utc, event))
                self.run_ended = self.primary_failure = None
            case records.RunEnded():
                self.run_ended = record
            case records.PrimaryFailed(reason=reason):
                self.primary_failure = reason
            case records.StorageWaited():
                self.storage_waits.append((PRIMARY, event))
            case records.StopRequested():
                self.stop_requests.append(event)
            case records.ReplicaLaunched(replica=name, job=job):
                replica = self._replica(name)
                replica.exit_status = None
                replica.job = job
                replica.job_state = None
            case records.JobState(replica=name):
                replica = self._replica(name)
                replica.job_state = event
                replica.job_utc = record.utc
                if event.phase is JobPhase.REQUEUED:
                    replica.requeued.append((record.utc, event.detail))
            case records.NodeChecked(replica=name):
                self._replica(name).checked = event
            case records.SchedulerState(answers=answers, detail=detail):
                self.scheduler_problem = None if answers else detail
            case records.ReplicaExited(replica=name, status=status):
                self._replica(name).exit_status = status
            case records.FileProblem():
                self._file_problem("primary", event)
            case _:
                pass  # Heartbeats count by their time alone.

    def _proposed(
        self, utc: float, event: records.Proposed, replica: ReplicaHistory, _: _Source
    ) -> None:
        before = self.proposals.get(event.proposal)
        if before is not None:
            self._waiting[before.replica].pop(before.id, None)
        proposal = self.proposals[event.proposal] = Proposal(utc, replica.id, event)
        waiting = self._waiting.setdefault(replica.id, {})
        if proposal.id not in self._taken:
            waiting[proposal.id] = proposal

    def _proposal_rejected(self, _: float, event: records.ProposalRejected, *__: object) -> None:
        self.rejected[event.proposal] = event.reason
        self._take_proposal(event.proposal)

    def _search_started(
        self, _: float, event: records.SearchStarted, __: ReplicaHistory, ___: _Source
    ) -> None:
        self.searchers.add(event.searcher)

    def _search_failed(
        self, _: float, event: records.SearchFailed, replica: ReplicaHistory, __: _Source
    ) -> None:
        self.search_failures.append(f"{replica.id}: {event.reason}")
        if event.lost_parent is not None:
            self._lost.add(event.lost_parent)
            if (parent := self.trials.get(event.lost_parent)) is not None:
                parent.has_checkpoint = False

    def _search_ended(
        self, _: float, event: records.SearchEnded, replica: ReplicaHistory, __: _Source
    ) -> None:
        if event.reason.startswith("failed"):
            self.search_failures.append(f"{replica.id}: {event.reason}")

    def _file_problem(self, who: str, event: records.FileProblem) -> None:
        self.file_problems.append(f"{who}: {event.problem}; {event.remedy}")

    def _replica_file_problem(
        self, _: float, event: records.FileProblem, replica: ReplicaHistory, __: _Source
    ) -> None:
        self._file_problem(replica.id, event)

    def _replica_started(
        self, utc: float, event: records.ReplicaStarted, replica: ReplicaHistory, _: _Source
    ) -> None:
        replica.started = event
        replica.started_utc = utc
        replica.ended = None

    def _dataset_loaded(
        self, _: float, event: records.DatasetLoaded, replica: ReplicaHistory, __: _Source
    ) -> None:
        replica.dataset = event.dataset
        replica.memory_limit = event.memory_limit_bytes

    def _time_spent(
        self, _: float, event: records.TimeSpent, replica: ReplicaHistory, __: _Source
    ) -> None:
        for phase, value in event.seconds.items():
            replica.seconds[phase] = replica.seconds.get(phase, 0.0) + value

    def _step_times(
        self, _: float, event: records.StepTimes, replica: ReplicaHistory, __: _Source
    ) -> None:
        replica.step_times.append(event)

    def _ranks_lost(
        self, utc: float, event: records.RanksLost, replica: ReplicaHistory, source: _Source
    ) -> None:
        self._leave(replica, source, utc, TrialState.FAILED, event.reason)

    def _heartbeat(
        self, _: float, event: records.Heartbeat, replica: ReplicaHistory, __: _Source
    ) -> None:
        replica.heartbeat = event
        replica.phase = event.phase

    def _storage_waited(
        self, _: float, event: records.StorageWaited, replica: ReplicaHistory, __: _Source
    ) -> None:
        replica.storage_waits.append(event)
        self.storage_waits.append((replica.id, event))

    def _replica_ended(
        self, utc: float, event: records.ReplicaEnded, replica: ReplicaHistory, source: _Source
    ) -> None:
        reason = f"its replica ended: {event.reason}"
        self._leave(replica, source, utc, TrialState.STOPPED, reason)
        replica.ended = event.reason
        replica.ended_utc = utc

    def _training_started(
        self, utc: float, event: records.TrainingStarted, replica: ReplicaHistory, source: _Source
    ) -> None:
        if (trial := self._trial(event.trial, replica, source)) is not None:
            trial.state = TrialState.TRAINING
            trial.training_utc = utc

    def _progress(
        self, utc: float, event: records.Progress, replica: ReplicaHistory, source: _Source
    ) -> None:
        if (trial := self._trial(event.trial, replica, source)) is not None:
            train, validation = event.train_samples, event.validation_samples
            trial.train_samples += train
            trial.validation_samples += validation
            self.executions.add(utc, event.trial, train, validation)

    def _evaluated(
        self, utc: float, event: records.Evaluated, replica: ReplicaHistory, source: _Source
    ) -> None:
        trial = self._trial(event.trial, replica, source)
        if trial is None:
            return
        evaluation = Evaluation(
            utc, trial.id, event.epoch, event.validation_loss, event.correct, event.samples
        )
        trial.evaluations.append(evaluation)
        if trial.best is None or evaluation.accuracy > trial.best.accuracy:
            trial.best = evaluation
        if evaluation.beats(self.best):
            self.best = evaluation
        if not utc <= self._evaluated_utc:
            self._evaluated_utc = math.inf if math.isnan(utc) else utc

    def _trial_ended(
        self, utc: float, event: records.TrialEnded, replica: ReplicaHistory, source: _Source
    ) -> None:
        trial = self._trial(event.trial, replica, source)
        if trial is None:
            return
        if trial.ended is None:
            self.ended.append(trial)
        trial.state = event.state
        trial.ended = event
        trial.ended_utc = utc
        trial.has_checkpoint = event.checkpoint and trial.id not in self._lost
        self._open.pop(trial.id, None)

    def _checkpoint_dropped(
        self, _: float, event: records.CheckpointDropped, replica: ReplicaHistory, source: _Source
    ) -> None:
        if (trial := self._trial(event.trial, replica, source)) is not None:
            trial.has_checkpoint = False


# A look-up by type: a chain of isinstance cost as much as all the rest of applying a record.
_APPLY: Final[dict[type, Callable[[RunHistory, float, Any, ReplicaHistory, _Source], None]]] = {
    records.TrialStarted: RunHistory._trial_started,
    records.TrainingStarted: RunHistory._training_started,
    records.Progress: RunHistory._progress,
    records.Evaluated: RunHistory._evaluated,
    records.TrialEnded: RunHistory._trial_ended,
    records.CheckpointDropped: RunHistory._checkpoint_dropped,
    records.Proposed: RunHistory._proposed,
    records.ProposalRejected: RunHistory._proposal_rejected,
    records.SearchStarted: RunHistory._search_started,
    records.SearchFailed: RunHistory._search_failed,
    records.SearchEnded: RunHistory._search_ended,
    records.ReplicaStarted: RunHistory._replica_started,
    records.DatasetLoaded: RunHistory._dataset_loaded,
    records.TimeSpent: RunHistory._time_spent,
    records.StepTimes: RunHistory._step_times,
    records.RanksLost: RunHistory._ranks_lost,
    records.Heartbeat: RunHistory._heartbeat,
    records.StorageWaited: RunHistory._storage_waited,
    records.ReplicaEnded: RunHistory._replica_ended,
    records.FileProblem: RunHistory._replica_file_problem,
}
