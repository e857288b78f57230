"""The report of a run as typed data: what ``report.json`` holds and ``report.html`` shows.

Everything in it is computed from the run directory alone, at the run's end or, while it lasts,
at its last record. No clock of the machine that makes it goes in, so that the same records
always give the same report.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import model_validator

from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.objective import ACCURACY
from aiperf_hpc.ops_counter.score import credited
from aiperf_hpc.primary.formatting import in_words, utc_text
from aiperf_hpc.primary.monitor.consistency import clock_problems, rejections
from aiperf_hpc.primary.monitor.run_view import (
    ReplicaStatus,
    RunView,
    ScoreStatus,
    StorageStatus,
    TrialStatus,
)
from aiperf_hpc.primary.report.scaling import Scaling
from aiperf_hpc.primary.report.search_replay import SearchReplay, replay_search
from aiperf_hpc.run.history import ReplicaHistory, Trial
from aiperf_hpc.run.paths import Incarnation
from aiperf_hpc.run.records import StepTimes
from aiperf_hpc.system.summary import MachineSummary
from aiperf_hpc.trial import DatasetInfo, Hyperparameters, Machine, StepPart, TimePhase, Value

UNRECORDED = "unrecorded"
"""The part of the elapsed time that no record accounts for."""

PHASES = (*(str(phase) for phase in TimePhase), UNRECORDED)


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
    """The best graph and its operations for one sample."""

    trial: str
    graph: str
    accuracy: float | None
    """The best accuracy; None where the run has another measure."""
    quality: float | None = None
    """The best quality by the run's measure."""
    epoch: int
    parameters: int
    depth: int
    forward: int
    backward: int
    by_kind: dict[str, KindOperations]


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
    notes: tuple[str, ...]


class PhaseTime(Value):
    """Time in one phase; ``share`` is of the elapsed time."""

    seconds: float
    share: float


class TimeSplit(Value):
    """Where the elapsed time of a replica, or of all of them, went."""

    elapsed_seconds: float
    phases: dict[str, PhaseTime]
    """Every phase and, last, what no record accounts for; together the elapsed time."""
    train_evaluate_share: float


class StepSplit(Value):
    """Where the training steps of replicas of several ranks went: HPC AI500's table."""

    collective: str
    ranks: int
    """The number of ranks of a replica."""
    steps: int
    seconds: dict[StepPart, float]
    """Seconds of a step by part, as the mean over steps and ranks."""
    shares: dict[StepPart, float]


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


class Broken(Value):
    """A rule that the run does not keep, and how."""

    rule: str
    reason: str


class Restart(Value):
    """A primary or a replica that was started again."""

    at_seconds: float
    """Seconds from the run's start."""
    who: str
    what: str


class StorageWait(Value):
    """A time in which storage that was full or away was waited for."""

    began_seconds: float
    """Seconds from the run's start."""
    seconds: float
    reason: str
    """What could not be done, and what storage answered."""


class StorageReport(Value):
    """How long the primary or a replica waited for storage, and when."""

    who: str
    seconds: float
    waits: tuple[StorageWait, ...]
    """The replica's waits in order of time; none in a run of a version that recorded their sum
    alone."""


class Problems(Value):
    """What is not as it should be in the run's records."""

    journals: tuple[str, ...]
    """Lines that are no records in their place. Each makes the run invalid."""
    torn: tuple[str, ...]
    """Journals that end in an unfinished line."""
    set_aside: tuple[str, ...]
    """Files of torn lines that a restarted writer moved out of its journal."""
    search: tuple[str, ...]
    """Candidates that could not be made or loaded."""
    clock: tuple[str, ...]
    """Times that do not fit the run's."""
    files: tuple[str, ...] = ()
    """Files that were damaged or gone, and what was done without them."""


class Report(Value):
    """A run, from its own records."""

    schema_version: Literal[1] = 1
    run_id: str
    final: bool
    """Whether the run has ended; while it lasts, the numbers are those at its last record."""
    valid: bool
    invalid: tuple[Broken, ...]
    started: str | None
    until: str | None
    """The end of the run or, while it lasts, its last record."""
    end_reason: str
    nodes: int
    hours: float
    """The hours that were asked for; ``score.elapsed_seconds`` is what it took."""
    launcher: str
    measure: str = ACCURACY.name
    """The name of the run's measure of quality."""
    score: ScoreStatus
    without_error: str = ""
    """Why there is no error, and so no regulated score; empty where there is."""
    series: tuple[ScoreStatus, ...]
    """The score at every interval, and at the end."""
    interval_hours: float
    operations: OperationSplit
    best: GraphReport | None
    time: TimeSplit
    """Where the time of all replicas together went."""
    step: StepSplit | None = None
    """Where the time of a training step went; None where replicas have one rank."""
    replicas: tuple[ReplicaReport, ...]
    trials: tuple[TrialReport, ...]
    trials_by_state: dict[str, int]
    search: SearchReplay
    """What the search expected of its candidates, and what became of them."""
    restarts: tuple[Restart, ...]
    """The restarts in order of time; the clock never stopped."""
    storage: tuple[StorageReport, ...] = ()
    """The primary and the replicas that waited for storage."""
    datasets: tuple[DatasetInfo, ...]
    versions: dict[str, str]
    commit: str | None
    config: RunConfig
    system: MachineSummary | None = None
    """The machine, by what its processes told; None in runs of versions that did not ask them."""
    problems: Problems
    scaling: Scaling | None = None
    """The run among others of other sizes, where they were named; not from its records."""

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_version(cls, data: Any) -> Any:  # noqa: ANN401 -- whatever was written
        return as_of_now(data) if isinstance(data, dict) else data


def as_of_now(document: dict[str, Any]) -> dict[str, Any]:
    """Return a report.json as this version would write it; one of this version as it is.

    Before runs had measures, every report was of accuracies, of a dataset of labelled images.

    Raises:
        ValueError: its configuration or a dataset is none.
    """
    if "measure" in document:
        return document
    best = document.get("best")
    trials = document.get("trials")
    return {
        **document,
        "measure": ACCURACY.name,
        "best": {**best, "quality": best.get("accuracy")} if isinstance(best, dict) else best,
        "trials": [_row_of_now(row) for row in trials] if isinstance(trials, list) else trials,
        "datasets": [
            DatasetInfo.model_validate(dataset).model_dump(mode="json")
            for dataset in document.get("datasets", ())
        ],
        "config": RunConfig.model_validate(document.get("config")).model_dump(mode="json"),
    }


def _row_of_now(row: object) -> object:
    if not isinstance(row, dict):
        return row
    return {**row, "best_quality": row.get("best_accuracy")}


def make_report(view: RunView) -> Report:
    """Return the report of what ``view`` has read.

    Raises:
        GraphError: a trained graph is lost and cannot be grown again, so that its operations
            cannot be counted.
        AIPerfError: the graphs count other operations than the trials recorded.
    """
    history, manifest = view.history, view.manifest
    end = view.until
    final = view.final()
    split = _operations(view, end)
    if split.total != final.operations:
        raise AIPerfError(
            f"the trials of {view.paths.root} recorded {final.operations:,} operations, their "
            f"graphs count {split.total:,}; `aiperf verify {view.paths.root}` names the trials"
        )
    invalid = tuple(Broken(rule=v.rule, reason=v.reason) for v in view.violations())
    status = view.status(end)
    replicas = tuple(
        _replica(history.replicas[r.id], r, status.rounds[r.id], final.elapsed)
        for r in status.replicas
    )
    datasets = {r.dataset: None for r in history.replicas.values() if r.dataset is not None}
    return Report(
        run_id=manifest.run_id,
        final=history.end_utc is not None,
        valid=not invalid,
        invalid=invalid,
        started=utc_text(history.start_utc),
        until=utc_text(None if history.start_utc is None else end),
        end_reason=status.reason if history.end_utc is not None else "",
        nodes=manifest.nodes,
        hours=manifest.hours,
        launcher=manifest.launcher,
        measure=view.measure.name,
        score=ScoreStatus.of(final),
        without_error=view.without_error(end),
        series=tuple(view.score()),
        interval_hours=manifest.config.score.interval_hours,
        operations=split,
        best=_best(view, end),
        time=_total_time(view, final.elapsed),
        step=split_steps([t for r in history.replicas.values() for t in r.step_times]),
        replicas=replicas,
        trials=_trials(view, end),
        trials_by_state=status.trials_by_state,
        search=replay_search(view),
        restarts=_restarts(view),
        storage=tuple(_storage(view, each) for each in status.storage),
        datasets=tuple(datasets),
        versions=manifest.versions,
        commit=manifest.commit,
        config=manifest.config,
        system=_system(view),
        problems=_problems(view, end, final.elapsed),
    )


def _system(view: RunView) -> MachineSummary | None:
    machine = view.machine.summary()
    return machine if machine.nodes or machine.primary else None


def split_time(seconds: Mapping[TimePhase, float], elapsed: float) -> TimeSplit:
    """Return where ``elapsed`` seconds went, given what was recorded of them.

    Where more is recorded than elapsed, e.g. by a replica that outlived the run, what is
    recorded is the whole, so that shares never exceed one.
    """
    recorded = sum(seconds.values())
    whole = max(elapsed, recorded)
    parts = {str(phase): seconds.get(phase, 0.0) for phase in TimePhase}
    parts[UNRECORDED] = whole - recorded
    phases = {
        name: PhaseTime(seconds=part, share=part / whole if whole > 0 else 0.0)
        for name, part in parts.items()
    }
    busy = phases[TimePhase.TRAIN].share + phases[TimePhase.EVALUATE].share
    return TimeSplit(elapsed_seconds=whole, phases=phases, train_evaluate_share=busy)


def split_steps(times: Sequence[StepTimes]) -> StepSplit | None:
    """Return the mean step of all trials that said where their steps' time went."""
    steps = sum(each.steps for each in times)
    if not steps:
        return None
    seconds = {part: sum(e.seconds.get(part, 0.0) for e in times) / steps for part in StepPart}
    whole = sum(seconds.values()) or 1.0
    shares = {part: each / whole for part, each in seconds.items()}
    return StepSplit(
        collective=times[-1].collective,
        ranks=times[-1].ranks,
        steps=steps,
        seconds=seconds,
        shares=shares,
    )


def _total_time(view: RunView, elapsed: float) -> TimeSplit:
    """Return the time of all replicas; one that never came up has only unrecorded time."""
    replicas = view.history.replicas.values()
    seconds = {phase: sum(r.seconds.get(phase, 0.0) for r in replicas) for phase in TimePhase}
    return split_time(seconds, elapsed * max(view.manifest.replicas, len(replicas)))


def _replica(
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


def _trials(view: RunView, end: float) -> tuple[TrialReport, ...]:
    history = view.history
    operations: Counter[str] = Counter()
    for execution in history.executions:
        if execution.utc <= end:
            graph = history.trials[execution.trial].started.graph
            operations[execution.trial] += credited(execution, view.counts[graph])
    start = history.start_utc
    return tuple(
        _trial(status, history.trials[status.id], operations[status.id], start)
        for status in view.trials(end)
    )


def _trial(status: TrialStatus, trial: Trial, operations: int, start: float | None) -> TrialReport:
    training = trial.training_utc
    return TrialReport(
        **status.model_dump(),
        operations=operations,
        training_started_seconds=(
            None if training is None else training - (trial.started_utc if start is None else start)
        ),
        grown_by=in_words(status.morphisms),
        hyperparameters=trial.started.hyperparameters,
        notes=trial.started.notes,
    )


def _operations(view: RunView, end: float) -> OperationSplit:
    """Return the split of the score's operations: the same records, the same counts."""
    history = view.history
    train: Counter[str] = Counter()
    validation: Counter[str] = Counter()
    for execution in history.executions:
        if execution.utc <= end:
            graph = history.trials[execution.trial].started.graph
            train[graph] += execution.train_samples
            validation[graph] += execution.validation_samples
    training_forward = sum(n * view.counts[graph].forward for graph, n in train.items())
    validation_forward = sum(n * view.counts[graph].forward for graph, n in validation.items())
    backward = sum(n * view.counts[graph].backward for graph, n in train.items())
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
        for kind, operations in view.counts[graph].by_kind.items():
            forward[kind] += (train[graph] + validation[graph]) * operations.forward
            backward[kind] += train[graph] * operations.backward
    return {
        kind: KindOperations(forward=forward[kind], backward=backward[kind]) for kind in forward
    }


def _best(view: RunView, end: float) -> GraphReport | None:
    best = view.best(end)
    if best is None:
        return None
    started = view.history.trials[best.trial].started
    counted = view.counts[started.graph]
    return GraphReport(
        trial=best.trial,
        graph=started.graph,
        accuracy=best.quality if best.measure is ACCURACY else None,
        quality=best.quality,
        epoch=best.epoch,
        parameters=started.parameters,
        depth=started.depth,
        forward=counted.forward,
        backward=counted.backward,
        by_kind={
            kind: KindOperations(forward=o.forward, backward=o.backward)
            for kind, o in counted.by_kind.items()
        },
    )


def _restarts(view: RunView) -> tuple[Restart, ...]:
    history = view.history
    start = history.start_utc or 0.0
    found = [
        Restart(at_seconds=utc - start, who="primary", what=f"resumed on {event.host}")
        for utc, event in history.run_starts[1:]
    ]
    resumed: defaultdict[tuple[str, Incarnation], list[str]] = defaultdict(list)
    for trial in history.trials.values():
        if trial.started.resumes is not None:
            what = f"went on with {trial.started.resumes} at epoch {trial.started.first_epoch}"
            resumed[trial.replica, trial.incarnation].append(what)
    for replica in history.replicas.values():
        for life, utc in sorted(replica.starts.items())[1:]:
            what = "; ".join([f"life {life} started", *resumed[replica.id, life]])
            found.append(Restart(at_seconds=utc - start, who=replica.id, what=what))
    return tuple(sorted(found, key=lambda restart: restart.at_seconds))


def _storage(view: RunView, status: StorageStatus) -> StorageReport:
    start = view.history.start_utc or 0.0
    waits = [wait for who, wait in view.history.storage_waits if who == status.who]
    return StorageReport(
        who=status.who,
        seconds=status.seconds,
        waits=tuple(
            StorageWait(began_seconds=w.began_utc - start, seconds=w.seconds, reason=w.why)
            for w in sorted(waits, key=lambda wait: wait.began_utc)
        ),
    )


def _problems(view: RunView, end: float, elapsed: float) -> Problems:
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
    )


def _clock_problems(view: RunView, end: float, elapsed: float) -> list[str]:
    history = view.history
    found = clock_problems(history)
    late = sum(execution.utc > end for execution in history.executions)
    if late:
        found.append(f"{late} records of executed samples are later than the end: no credit")
    for replica in history.replicas.values():
        extra = sum(replica.seconds.values()) - elapsed
        if extra > 1.0:
            found.append(f"{replica.id} recorded {extra:.1f} s more than the run took")
    return found
