"""Application of records to the state of a run, which is a pure function of its records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any, Final

from aiperf_hpc.run import records
from aiperf_hpc.run.executed_samples import Executions
from aiperf_hpc.run.history.replicas import ReplicaHistory
from aiperf_hpc.run.history.state import PRIMARY, WINDOW_SECONDS, RunState, WitnessHistory
from aiperf_hpc.run.history.tail import JournalSource
from aiperf_hpc.run.history.telemetry import SamplerHistory
from aiperf_hpc.run.history.trials import Evaluation, Proposal, Trial
from aiperf_hpc.run.journal import Problem
from aiperf_hpc.run.records import Record
from aiperf_hpc.run.records.parsing import AnyRecord, FrequentHeartbeat, FrequentProgress
from aiperf_hpc.trial import JobPhase, TrialState


@dataclass(slots=True)
class _Writer:
    """The attempt of a replica that wrote a journal."""

    replica: ReplicaHistory
    source: JournalSource
    heartbeat: records.Heartbeat | FrequentHeartbeat | None = None
    """The last heartbeat that was read."""

    def close(self) -> None:
        """Store the last heartbeat in the replica's history: once, as storing each takes 1 us."""
        match self.heartbeat:
            case FrequentHeartbeat() as last:
                self.replica.heartbeat = last.model()
            case records.Heartbeat() as last:
                self.replica.heartbeat = last


@dataclass(slots=True, eq=False)
class HistoryState(RunState):
    """The state of a run, updated by each applied record."""

    _taken: set[str] = field(default_factory=set)
    _lost: set[str] = field(default_factory=set)
    """Trials whose trained weights were found missing or damaged."""
    _samplers: dict[Path, SamplerHistory] = field(default_factory=dict)
    """The latest sampler of each journal."""

    def apply(self, source: JournalSource, added: Iterable[AnyRecord]) -> None:
        """Apply new records of a journal, except those written by a replaced attempt."""
        if source.replica is None:
            self._apply_all_of_primary(source, added)
            return
        rest = iter(added)
        if (first := next(rest, None)) is None:
            return
        by = _Writer(self._replica(source.replica), source)
        try:
            self._apply_all_of(by, chain((first,), rest))
        finally:
            by.close()

    def _apply_all_of_primary(self, source: JournalSource, added: Iterable[AnyRecord]) -> None:
        for record in added:
            self.primary_utc = record.utc
            self.last_utc = max(self.last_utc, record.utc)
            if isinstance(record, Record):
                self._apply_primary(record, source.reader.offset)

    def _apply_all_of(self, by: _Writer, added: Iterable[AnyRecord]) -> None:
        replica, source = by.replica, by.source
        for record in added:
            utc, event = record.utc, record.event
            if utc >= source.fence:
                self.fenced += 1
                if type(event) is records.TrialStarted:
                    self.fenced_trials.setdefault(event.trial, event)
                continue
            if utc > replica.last_utc:
                replica.last_utc = utc
                if utc > self.last_utc:
                    self.last_utc = utc
            change = _CHANGES.get(type(event))
            if change is not None:
                change(self, utc, event, by)
            elif isinstance(event, _OF_TRIAL):
                if (trial := self._trial(event.trial, by)) is not None:
                    self._change_trial(trial, utc, event)
            elif isinstance(event, records.Event):
                self._change(utc, event, by)

    def add(self, other: HistoryState) -> bool:
        """Merge the state of other replicas' journals, as if they had been read after these.

        Return False if that is impossible because both states have a trial or a candidate of the
        same name, which only a sequential replay can resolve. This state is then unusable.
        """
        if self.trials.keys() & other.trials.keys() or (
            self.proposals.keys() & other.proposals.keys()
        ):
            return False
        for name in self.replicas.keys() & other.replicas.keys():
            other.replicas[name].adopt_primary_records(self.replicas[name])
        for host, samplers in other.telemetry.items():
            samplers[:0] = self.telemetry.get(host, [])
        other.fenced_trials |= self.fenced_trials
        for each in fields(self):
            _extend(getattr(self, each.name), getattr(other, each.name))
        for name in self._lost & self.trials.keys():
            self.trials[name].has_checkpoint = False
        for name in self._taken & self.proposals.keys():
            self.waiting[self.proposals[name].replica].pop(name, None)
        if other.best is not None and other.best.beats(self.best):
            self.best = other.best
        self.fenced += other.fenced
        self.evaluated_utc = max(self.evaluated_utc, other.evaluated_utc)
        self.last_utc = max(self.last_utc, other.last_utc)
        return True

    def interrupt(self) -> None:
        """End the open trials of attempts that were replaced by later ones."""
        for trial in list(self._open.values()):
            replica = self.replicas[trial.replica]
            until = replica.fence(trial.incarnation)
            if until < math.inf:
                # The failure of a rank ends all ranks and counts as a failure of the trial.
                failed = replica.several_ranks
                trial.state = TrialState.FAILED if failed else TrialState.STOPPED
                trial.interrupted = f"its replica was lost and restarted{replica.death(until)}"
                del self._open[trial.id]

    def _orphan(self, by: _Writer, what: str) -> None:
        reader = by.source.reader
        self.orphans.append(Problem(reader.path, reader.line, what))

    def _replica(self, name: str) -> ReplicaHistory:
        if name not in self.replicas:
            self.replicas[name] = ReplicaHistory(name, starts=self.starts.setdefault(name, {}))
        return self.replicas[name]

    def _trial(self, name: str, by: _Writer) -> Trial | None:
        """Return a replica's trial, or None after reporting a problem if it did not start it."""
        trial = self.trials.get(name)
        if trial is None or trial.replica != by.replica.id:
            self._orphan(by, f"a record of trial {name}, which no record of this replica started")
            return None
        return trial

    def _trial_started(self, utc: float, event: records.TrialStarted, by: _Writer) -> None:
        if event.trial in self.trials:
            self._orphan(by, f"trial {event.trial} starts a second time")
            return
        trial = Trial(by.replica.id, event, utc, incarnation=by.source.incarnation)
        self.trials[event.trial] = self._open[event.trial] = trial
        by.replica.trials.append(event.trial)
        if event.proposal is not None:
            self._take_proposal(event.proposal)

    def _take_proposal(self, name: str) -> None:
        """Remove a proposal from the queue, even if its record has not been read yet."""
        self._taken.add(name)
        if name in self.proposals:
            self.waiting[self.proposals[name].replica].pop(name, None)

    def _leave(self, by: _Writer, utc: float, state: TrialState, reason: str) -> None:
        """End the open trial of an attempt, which the replica's next attempt resumes."""
        for name in by.replica.trials:
            trial = self._open.get(name)
            if trial is not None and trial.incarnation == by.source.incarnation:
                trial.state = state
                trial.ended_utc = utc
                trial.interrupted = reason
                del self._open[name]

    def _apply_primary(self, record: Record, end: int) -> None:
        """Apply a record of the primary that ends at an offset of its journal in bytes."""
        event = record.event
        match event:
            case records.RunStarted():
                self.run_started = self.run_started or record
                self.run_starts.append((record.utc, event))
                self.run_ended = self.primary_failure = None
                self.primary_clocks.clear()
            case records.ClockStarted():
                self.clock_started = self.clock_started or event
            case records.RunEnded():
                self.run_ended = record
                self.end_bytes = end
            case records.Witnessed() | records.TimeStamped():
                start = self.run_started.utc if self.run_started else None
                self._witness(event.url).take(record.utc, event, start)
            case records.WitnessState():
                self._witness(event.url).change(event)
            case records.PrimaryFailed(reason=reason):
                self.primary_failure = reason
            case records.StorageWaited():
                self.storage_waits.append((PRIMARY, event))
            case records.StopRequested():
                self.stop_requests.append((record.utc, event))
            case records.ReplicaLaunched(replica=name, job=job):
                replica = self._replica(name)
                replica.exit_status = None
                replica.job = job
                replica.job_state = replica.released_utc = None
            case records.NodesRequested() | records.NodesRefused():
                self.scalings.append((record.utc, event))
            case records.ReplicaReleased(replica=name):
                self._replica(name).released_utc = record.utc
            case records.JobState(replica=name):
                replica = self._replica(name)
                replica.job_state = event
                replica.job_utc = record.utc
                replica.submitted_utc = replica.submitted_utc or event.submitted_utc
                replica.granted_utc = replica.granted_utc or event.started_utc
                if event.phase is JobPhase.REQUEUED:
                    replica.requeued.append((record.utc, event.detail))
            case records.NodeChecked(replica=name):
                self._replica(name).checked = event
            case records.SchedulerState(reachable=reachable, detail=detail):
                self.scheduler_problem = None if reachable else detail
            case records.ReplicaExited(replica=name, status=status):
                replica = self._replica(name)
                replica.exit_status, replica.exited_utc = status, record.utc
            case records.FileProblem(file=file):
                self._file_problem("primary", event)
                if file.startswith("replicas/"):
                    self.missing_journals.append(file)
            case records.SystemDescribed():
                self.primary_described = event.description
            case records.ClocksRead(clocks=clocks):
                self.primary_clocks.append(clocks)
            # Only the time of a heartbeat matters.

    def _witness(self, url: str) -> WitnessHistory:
        return self.witnesses.setdefault(url, WitnessHistory(url))

    def _proposed(self, utc: float, event: records.Proposed, by: _Writer) -> None:
        before = self.proposals.get(event.proposal)
        if before is not None:
            self.waiting[before.replica].pop(before.id, None)
        proposal = self.proposals[event.proposal] = Proposal(utc, by.replica.id, event)
        waiting = self.waiting.setdefault(by.replica.id, {})
        if proposal.id not in self._taken:
            waiting[proposal.id] = proposal

    def _file_problem(self, who: str, event: records.FileProblem) -> None:
        self.file_problems.append(f"{who}: {event.problem}; {event.remedy}")

    def _replica_started(self, utc: float, event: records.ReplicaStarted, by: _Writer) -> None:
        by.replica.all_started.append((utc, event))
        by.replica.alive_utc = utc
        by.replica.ready_utc = None
        began = utc - event.alive_seconds
        by.replica.began_utc = min(began, by.replica.began_utc or began)
        by.replica.ended = None
        by.replica.described.clear()
        by.replica.peaks.clear()
        by.replica.clocks.clear()

    def _time_spent(self, _: float, event: records.TimeSpent, by: _Writer) -> None:
        accounts = [by.replica.seconds]
        trial = self.trials.get(event.trial) if event.trial is not None else None
        if trial is not None and trial.replica == by.replica.id:
            accounts.append(trial.seconds)
        for account in accounts:
            for phase, value in event.seconds.items():
                account[phase] = account.get(phase, 0.0) + value

    def _heartbeat(
        self, utc: float, event: records.Heartbeat | FrequentHeartbeat, by: _Writer
    ) -> None:
        by.replica.note_alive(utc)
        by.replica.alive[by.source.incarnation] = utc
        by.heartbeat = event
        by.replica.phase = event.phase

    def _sampled(self, utc: float, event: records.TelemetrySampled, by: _Writer) -> None:
        sampler = self._samplers.get(by.source.reader.path)
        if sampler is None:
            self._orphan(by, "a sample of a node, and no record of this journal began to sample")
        elif not sampler.fits(event.sample):
            self._orphan(by, "a sample of a node that is not of its meters and accelerators")
        else:
            sampler.add(utc, event.sample)

    def _replica_ended(self, utc: float, event: records.ReplicaEnded, by: _Writer) -> None:
        reason = f"its replica ended: {event.reason}"
        self._leave(by, utc, TrialState.STOPPED, reason)
        by.replica.ended = event.reason
        by.replica.ended_utc = by.replica.alive[by.source.incarnation] = utc
        by.replica.note_alive(utc)

    def _progress(
        self, utc: float, event: records.Progress | FrequentProgress, by: _Writer
    ) -> None:
        if (trial := self._trial(event.trial, by)) is not None:
            train, validation = event.train_samples, event.validation_samples
            trial.train_samples += train
            trial.validation_samples += validation
            self.executions.add(utc, event.trial, train, validation)
            started, work = trial.started, by.replica.work
            done = train * started.train_operations + validation * started.validation_operations
            window = int(utc // WINDOW_SECONDS)
            work[window] = work.get(window, 0) + done

    def _evaluated(self, utc: float, event: records.Evaluated, by: _Writer) -> None:
        trial = self._trial(event.trial, by)
        if trial is None:
            return
        evaluation = Evaluation.of(utc, event)
        trial.evaluations.append(evaluation)
        if trial.best is None or evaluation.objective_value > trial.best.objective_value:
            trial.best = evaluation
        if evaluation.beats(self.best):
            self.best = evaluation
        if utc > self.evaluated_utc:
            self.evaluated_utc = utc

    def _change_trial(self, trial: Trial, utc: float, event: records.Event) -> None:
        match event:
            case records.TrainingStarted():
                trial.state = TrialState.TRAINING
                trial.training_utc = utc
            case records.TrialEnded():
                if trial.ended is None:
                    self.ended.append(trial)
                trial.state, trial.ended, trial.ended_utc = event.state, event, utc
                trial.has_checkpoint = event.checkpoint and trial.id not in self._lost
                self._open.pop(trial.id, None)
            case records.PredictionsSaved():
                trial.predictions = event
            case records.BestEpochSaved():
                trial.best_epoch = event
            case records.BestEpochDeleted():
                trial.best_epoch = None
            case records.CheckpointDeleted():
                trial.has_checkpoint = False

    def _change(self, utc: float, event: records.Event, by: _Writer) -> None:
        replica = by.replica
        match event:
            case records.ProposalRejected():
                self.rejected[event.proposal] = event.reason
                self._take_proposal(event.proposal)
            case records.SearchStarted():
                self.searchers.add(event.searcher)
            case records.SearchFailed():
                self.search_failures.append(f"{replica.id}: {event.reason}")
                if event.lost_parent is not None:
                    self._lost.add(event.lost_parent)
                    if (parent := self.trials.get(event.lost_parent)) is not None:
                        parent.has_checkpoint = False
            case records.SearchEnded(reason=reason) if reason.startswith("failed"):
                self.search_failures.append(f"{replica.id}: {reason}")
            case records.ReplicaReady():
                replica.ready_utc = utc
            case records.ClockSeen() if replica.ready_utc is not None:
                replica.waited, replica.seconds = replica.seconds, {}
                replica.ready_utc = None
            case records.SystemDescribed(rank=int(rank), description=description):
                replica.described[rank] = description
                if (variables := description.process.environment) not in replica.environments:
                    replica.environments.append(variables)
                if (node := description.node) is not None:
                    replica.nodes.setdefault(by.source.incarnation, []).append(node)
            case records.ModulesImported():
                ranks = replica.modules.setdefault(by.source.incarnation, {})
                ranks.setdefault(event.rank, []).append(event)
            case records.PeakMeasured():
                replica.peaks[event.rank] = event.peak
            case records.DatasetLoaded():
                replica.dataset = event.dataset
                replica.loads.append((utc, event.staged_seconds))
                replica.memory_limit = event.memory_limit_bytes
                replica.memory_holds_copies = event.memory_holds_copies
                replica.staged_bytes += event.staged_bytes
            case records.BaselineMeasured():
                replica.baseline = event
            case records.StepTimes():
                replica.step_times.append(event)
            case records.CompilerFailed():
                self.compiler_failures.append(f"{replica.id}: {event.problem}")
            case records.RanksLost():
                self._leave(by, utc, TrialState.FAILED, event.reason)
            case records.ClocksRead():
                replica.clocks.append(event.clocks)
            case records.TelemetryStarted():
                sampler = SamplerHistory(utc, replica.id, event.equipment)
                self._samplers[by.source.reader.path] = sampler
                self.telemetry.setdefault(sampler.host, []).append(sampler)
            case records.StorageWaited():
                replica.storage_waits.append(event)
                self.storage_waits.append((replica.id, event))
            case records.FileProblem():
                self._file_problem(replica.id, event)


def _extend(own: Any, more: Any) -> None:  # noqa: ANN401 -- equal fields of two states
    """Extend a collection by another state's."""
    if isinstance(own, dict | set):
        own.update(more)
    elif isinstance(own, list | Executions):
        own.extend(more)


# Frequent records are dispatched by type; a chain of isinstance doubles the time.
_CHANGES: Final[dict[type, Callable[[HistoryState, float, Any, _Writer], None]]] = {
    records.TrialStarted: HistoryState._trial_started,
    records.Progress: HistoryState._progress,
    FrequentProgress: HistoryState._progress,
    records.Evaluated: HistoryState._evaluated,
    records.Proposed: HistoryState._proposed,
    records.ReplicaStarted: HistoryState._replica_started,
    records.TimeSpent: HistoryState._time_spent,
    records.Heartbeat: HistoryState._heartbeat,
    FrequentHeartbeat: HistoryState._heartbeat,
    records.TelemetrySampled: HistoryState._sampled,
    records.ReplicaEnded: HistoryState._replica_ended,
}
_OF_TRIAL: Final = (
    records.TrainingStarted,
    records.TrialEnded,
    records.PredictionsSaved,
    records.BestEpochSaved,
    records.BestEpochDeleted,
    records.CheckpointDeleted,
)
"""Records that refer to a trial which their replica has already started."""
