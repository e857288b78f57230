"""A report's rows: one for each trial, and one for each replica."""

from __future__ import annotations

from aiperf_hpc.formatting import in_words
from aiperf_hpc.results.views.replica_status import ReplicaStatus
from aiperf_hpc.results.views.run_view import RunStatus, RunView
from aiperf_hpc.results.views.time_split import TimeSplit, split_time
from aiperf_hpc.results.views.trial_status import TrialStatus
from aiperf_hpc.run.history import ReplicaHistory, Trial
from aiperf_hpc.trial import Hyperparameters, Machine, Value


class TrialReport(TrialStatus):
    """One trial, with what it was credited."""

    operations: int
    """Operations credited until the report's time, from the counts of its graph."""
    training_started_seconds: float | None
    """Seconds from the run's start to its first step; None for a trial whose graph was never
    ready."""
    grown_by: str
    """The morphisms in words; empty for the initial graph."""
    hyperparameters: Hyperparameters
    first_epoch: int = 1
    """Its first epoch: a later one where it goes on with an interrupted trial."""
    qualities: tuple[float, ...] = ()
    """The quality of each complete evaluation, one an epoch; none in reports of earlier
    versions."""
    notes: tuple[str, ...]


class ReplicaReport(Value):
    """One replica."""

    id: str
    state: str
    trials: int
    rounds: int
    """The highest round that it reached."""
    engine: str | None
    machine: Machine | None
    time: TimeSplit


def replica_rows(view: RunView, status: RunStatus, elapsed: float) -> tuple[ReplicaReport, ...]:
    """Return every replica, and where its part of the elapsed seconds went."""
    return tuple(
        _replica_row(view.history.replicas[each.id], each, status.rounds[each.id], elapsed)
        for each in status.replicas
    )


def _replica_row(
    replica: ReplicaHistory, status: ReplicaStatus, rounds: int, elapsed: float
) -> ReplicaReport:
    return ReplicaReport(
        id=replica.id,
        state=status.state,
        trials=status.trials,
        rounds=rounds,
        engine=replica.started.engine if replica.started else None,
        machine=replica.machine,
        time=split_time(replica.seconds, elapsed),
    )


def trial_rows(view: RunView, end: float) -> tuple[TrialReport, ...]:
    """Return every trial in order of its start, with what it was credited until ``end``."""
    trials, start = view.history.trials, view.history.origin_utc
    return tuple(
        _trial(status, trials[status.id], _operations(view, status), start, end)
        for status in view.trials(end)
    )


def _operations(view: RunView, status: TrialStatus) -> int:
    """Return what a trial is credited; a graph without a sample need not be there."""
    train, validation = status.train_samples, status.validation_samples
    if not train and not validation:
        return 0
    graph = view.counts[status.graph]
    return train * graph.training + validation * graph.forward


def _trial(
    status: TrialStatus, trial: Trial, operations: int, start: float | None, end: float
) -> TrialReport:
    training = trial.training_utc
    return TrialReport(
        **status.model_dump(),
        operations=operations,
        training_started_seconds=(
            None if training is None else training - (trial.started_utc if start is None else start)
        ),
        grown_by=in_words(status.morphisms),
        hyperparameters=trial.started.hyperparameters,
        first_epoch=trial.started.first_epoch,
        qualities=tuple(each.quality for each in trial.evaluations if each.utc <= end),
        notes=trial.started.notes,
    )
