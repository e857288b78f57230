"""Parts of a report: rules, trials, replicas, operations, restarts, and problems."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from aiperf_hpc.formatting import in_words
from aiperf_hpc.grouping import grouped
from aiperf_hpc.objective import ACCURACY
from aiperf_hpc.results.views.replica_status import (
    ReplicaStatus,
    StorageStatus,
    clock_problems,
    rejections,
)
from aiperf_hpc.results.views.run_view import RunStatus, RunView
from aiperf_hpc.results.views.time_split import TimeSplit, split_time
from aiperf_hpc.results.views.trials import TrialStatus
from aiperf_hpc.rules.rule import RuleResult
from aiperf_hpc.run.history import ReplicaHistory
from aiperf_hpc.trial import Hyperparameters, Machine, TimePhase, Value


class RuleReport(Value):
    """Outcome of one rule."""

    rule: str
    value: str
    """Actual value of the run."""
    limit: str
    """Required value."""
    passed: bool
    reasons: tuple[str, ...]
    """Reason for the violation; empty if the rule is satisfied."""

    @classmethod
    def of(cls, result: RuleResult) -> RuleReport:
        return cls(
            rule=result.rule,
            value=result.found,
            limit=result.requirement,
            passed=result.passed,
            reasons=result.failures,
        )


class TrialReport(TrialStatus):
    """One trial, with its credited operations."""

    operations: int
    """Operations credited until the report's time, from the counts of its graph."""
    host: str | None = None
    """Host of the first rank; None in reports of earlier versions."""
    training_started_seconds: float | None
    """Seconds from the run's start to its first step; None for a trial whose graph was never
    ready."""
    morphisms_text: str
    """Descriptions of its morphisms; empty for the initial graph."""
    hyperparameters: Hyperparameters
    first_epoch: int = 1
    """First epoch of the trial, larger than 1 if it resumes an interrupted trial."""
    qualities: tuple[float, ...] = ()
    """Quality of each complete evaluation, one per epoch; none in reports of earlier versions."""
    phase_seconds: dict[TimePhase, float] = {}
    """Seconds by phase since the previous trial of the replica; empty until the trial has ended,
    and in reports of earlier versions."""
    notes: tuple[str, ...]


class ReplicaReport(Value):
    """One replica."""

    id: str
    state: str
    trials: int
    rounds: int
    """Highest round of the replica."""
    engine: str | None
    machine: Machine | None
    time: TimeSplit


def replica_rows(view: RunView, status: RunStatus, elapsed: float) -> tuple[ReplicaReport, ...]:
    """Return every replica with its time split."""
    return tuple(
        _replica_row(view.history.replicas[each.id], each, status.rounds[each.id], elapsed)
        for each in status.replicas
    )


def _replica_row(
    replica: ReplicaHistory, status: ReplicaStatus, rounds: int, elapsed: float
) -> ReplicaReport:
    return ReplicaReport(
        **ReplicaReport.fields_from(status),
        rounds=rounds,
        engine=replica.started.engine if replica.started else None,
        machine=replica.machine,
        time=split_time(replica.seconds, elapsed),
    )


def trial_rows(view: RunView, end: float) -> tuple[TrialReport, ...]:
    """Return every trial in order of its start, with the operations credited until ``end``."""
    return tuple(_trial(view, status, end) for status in view.trials(end))


def _trial(view: RunView, status: TrialStatus, end: float) -> TrialReport:
    trial, start = view.history.trials[status.id], view.history.origin_utc
    attempt = view.history.replicas[trial.replica].started_by(trial.started_utc)
    training = trial.training_utc
    return TrialReport(
        **status.model_dump(),
        operations=_credited(view, status),
        host=None if attempt is None else attempt.machine.host,
        training_started_seconds=(
            None if training is None else training - (trial.started_utc if start is None else start)
        ),
        morphisms_text=in_words(status.morphisms),
        hyperparameters=trial.started.hyperparameters,
        first_epoch=trial.started.first_epoch,
        qualities=tuple(each.quality for each in trial.evaluations if each.utc <= end),
        phase_seconds=trial.seconds,
        notes=trial.started.notes,
    )


def _credited(view: RunView, status: TrialStatus) -> int:
    """Return the credited operations of a trial; graphs of trials without samples may be
    missing."""
    train, validation = status.train_samples, status.validation_samples
    if not train and not validation:
        return 0
    graph = view.counts(status.graph)
    return train * graph.training + validation * graph.forward


class KindOperations(Value):
    """Operations of one kind of layer; the backward pass includes the update of the weights."""

    forward: int
    backward: int


class OperationSplit(Value):
    """The operations credited in the score, split; ``total`` is forward and backward."""

    total: int
    forward: int
    backward: int
    training_forward: int
    validation_forward: int
    train_samples: int
    validation_samples: int
    by_kind: dict[str, KindOperations]


class GraphReport(Value):
    """Best graph and its operations per sample."""

    trial: str
    graph: str
    accuracy: float | None
    """Best accuracy; None if the run has another metric."""
    quality: float | None = None
    """Best quality in the run's metric."""
    epoch: int
    parameters: int
    depth: int
    forward: int
    backward: int
    by_kind: dict[str, KindOperations]


def split_operations(view: RunView, end: float) -> OperationSplit:
    """Return the split of the score's operations, from the same records and counts."""
    history = view.history
    train: Counter[str] = Counter()
    validation: Counter[str] = Counter()
    late = history.executions.after(end)
    for name in history.executions.trials:
        trial, after = history.trials[name], late.get(name, (0, 0))
        own = trial.train_samples - after[0], trial.validation_samples - after[1]
        if any(own):  # The graphs of other trials may be missing.
            train[trial.started.graph] += own[0]
            validation[trial.started.graph] += own[1]
    training_forward = sum(n * view.counts(graph).forward for graph, n in train.items())
    validation_forward = sum(n * view.counts(graph).forward for graph, n in validation.items())
    backward = sum(n * view.counts(graph).backward for graph, n in train.items())
    return OperationSplit(
        total=training_forward + validation_forward + backward,
        forward=training_forward + validation_forward,
        backward=backward,
        training_forward=training_forward,
        validation_forward=validation_forward,
        train_samples=train.total(),
        validation_samples=validation.total(),
        by_kind=_by_kind(view, train, validation),
    )


def _by_kind(
    view: RunView, train: Mapping[str, int], validation: Mapping[str, int]
) -> dict[str, KindOperations]:
    forward: defaultdict[str, int] = defaultdict(int)
    backward: defaultdict[str, int] = defaultdict(int)
    for graph in sorted(train):
        for kind, operations in view.counts(graph).by_kind.items():
            forward[kind] += (train[graph] + validation[graph]) * operations.forward
            backward[kind] += train[graph] * operations.backward
    return {
        kind: KindOperations(forward=forward[kind], backward=backward[kind]) for kind in forward
    }


def best_graph(view: RunView, end: float) -> GraphReport | None:
    """Return the graph of the best evaluation up to ``end``, UTC seconds; None before any."""
    best = view.history.best_until(end)
    if best is None:
        return None
    started = view.history.trials[best.trial].started
    counted = view.counts(started.graph)
    values = {
        **GraphReport.fields_from(started),
        **GraphReport.fields_from(best),
        **GraphReport.fields_from(counted),
        "quality": best.quality,
        "accuracy": best.quality if best.quality_metric is ACCURACY else None,
        "by_kind": {
            kind: KindOperations(**KindOperations.fields_from(each))
            for kind, each in counted.by_kind.items()
        },
    }
    return GraphReport(**values)


class Restart(Value):
    """A restart of the primary or a replica."""

    elapsed_seconds: float
    """Seconds from the run's start."""
    component: str
    """``primary`` or name of a replica."""
    description: str
    """Description of the restart, with the trials that it resumed."""


class StorageWait(Value):
    """A wait for full or unavailable storage."""

    started_seconds: float
    """Seconds from the run's start."""
    seconds: float
    reason: str
    """Failed operation and the error of the storage."""


class StorageReport(Value):
    """Waits of the primary or a replica for storage."""

    component: str
    """``primary`` or name of a replica."""
    seconds: float
    """Total waiting time in seconds."""
    waits: tuple[StorageWait, ...]
    """Waits of the replica in chronological order; none in runs of versions that recorded only
    their sum."""


class Problems(Value):
    """Problems of the run's records."""

    journals: tuple[str, ...]
    """Malformed or out-of-order records. Each makes the run invalid."""
    torn: tuple[str, ...]
    """Journals that end in an unfinished line."""
    set_aside: tuple[str, ...]
    """Files of torn lines that a restarted writer moved out of its journal."""
    search: tuple[str, ...]
    """Candidates that could not be generated or loaded."""
    clock: tuple[str, ...]
    """Timestamps inconsistent with the run's."""
    files: tuple[str, ...] = ()
    """Damaged or missing files, and their handling."""
    compiler: tuple[str, ...] = ()
    """Networks that the ahead-of-time compiler process did not compile."""
    idle_accelerators: tuple[str, ...] = ()
    """Accelerators that no rank used."""


def restarts_of(view: RunView) -> tuple[Restart, ...]:
    """Return every restart of the primary or a replica, in chronological order."""
    history = view.history
    start = history.origin_utc or 0.0
    found = [
        Restart(
            elapsed_seconds=utc - start,
            component="primary",
            description=f"resumed on {event.host}",
        )
        for utc, event in history.run_starts[1:]
    ]
    resumed = grouped(
        (
            (trial.replica, trial.incarnation),
            f"resumed {trial.started.resumes} at epoch {trial.started.first_epoch}",
        )
        for trial in history.trials.values()
        if trial.started.resumes is not None
    )
    for replica in history.replicas.values():
        for life, utc in sorted(replica.starts.items())[1:]:
            text = "; ".join([f"attempt {life} started", *resumed[replica.id, life]])
            found.append(
                Restart(elapsed_seconds=utc - start, component=replica.id, description=text)
            )
    return tuple(sorted(found, key=lambda restart: restart.elapsed_seconds))


def storage_report(view: RunView, status: StorageStatus) -> StorageReport:
    """Return the waits of one writer for storage."""
    start = view.history.origin_utc or 0.0
    waits = [wait for name, wait in view.history.storage_waits if name == status.component]
    return StorageReport(
        component=status.component,
        seconds=status.seconds,
        waits=tuple(
            StorageWait(started_seconds=w.started_utc - start, seconds=w.seconds, reason=w.reason)
            for w in sorted(waits, key=lambda wait: wait.started_utc)
        ),
    )


def problems_of(view: RunView, end: float, elapsed: float) -> Problems:
    """Return the problems of the records of a run that ended at, or was read until, ``end``."""
    history, root = view.history, view.paths.root
    set_aside = (*root.glob("primary/*.torn-*"), *root.glob("replicas/*/*/*.torn-*"))
    return Problems(
        journals=tuple(
            f"{p.path.relative_to(root)}, line {p.line}: {p.what}" for p in history.problems
        ),
        torn=tuple(str(path.relative_to(root)) for path in history.torn),
        set_aside=tuple(str(path.relative_to(root)) for path in sorted(set_aside)),
        search=(
            *history.search_failures,
            *rejections(history),
        ),
        clock=tuple(_clock_problems(view, end, elapsed)),
        files=(*history.file_problems, *view.run_graphs.problems),
        compiler=tuple(history.compiler_failures),
        idle_accelerators=tuple(filter(None, [view.machine.idle()])),
    )


def _clock_problems(view: RunView, end: float, elapsed: float) -> list[str]:
    history = view.history
    found = clock_problems(history)
    late = history.executions.count_after(end)
    if late:
        found.append(f"{late} records of executed samples are later than the end: no credit")
    for replica in history.replicas.values() if history.start_utc is not None else ():
        extra = sum(replica.seconds.values()) - elapsed
        if extra > 1.0:
            found.append(f"{replica.id} recorded {extra:.1f} s more than the run took")
    return found
