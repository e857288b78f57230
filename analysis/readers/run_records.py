"""Training runs, execution times, predictions and work from the records of an AIPerf run."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.training_log import (
    Epoch,
    Evaluation,
    Interval,
    Quality,
    Rates,
    StoredPredictions,
    TrainingLog,
)
from aiperf_hpc.config import TrainingConfig
from aiperf_hpc.errors import CheckpointError, GraphError, RunDirectoryError, UsageError, reason_of
from aiperf_hpc.formatting import counted
from aiperf_hpc.graph import Graph
from aiperf_hpc.grouping import grouped
from aiperf_hpc.morphism.weights.weight_file import load_recorded
from aiperf_hpc.ops_counter.score import credited
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.results.views.trials import chains, cut
from aiperf_hpc.run.history import ReplicaHistory, RunHistory, Trial
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.peaks import Rate, listed
from aiperf_hpc.run.records import ReplicaStarted
from aiperf_hpc.trial import DatasetInfo, Machine, TensorSpec, TimePhase, TrialState
from aiperf_hpc.untrusted.bounds import first_fault
from aiperf_hpc.untrusted.files import text_of


class Span(NamedTuple):
    """The interval between two records of a trial's executed samples, and the samples in it."""

    started: float
    ended: float
    train_samples: int
    validation_samples: int

    @property
    def seconds(self) -> float:
        return self.ended - self.started


Spans = Mapping[str, Sequence[Span]]
"""Spans of each trial in order."""


def spans_of(history: RunHistory, until: float) -> Spans:
    """Return the spans of all trials, from the first step of each until ``until``, UTC seconds."""
    return grouped((trial.id, span) for trial, span in executed_of(history, until))


def executed_of(history: RunHistory, until: float) -> Iterator[tuple[Trial, Span]]:
    """Yield the spans of each trial until ``until``, UTC seconds.

    A record covers the time since the trial's previous record.
    """
    trials = [history.trials[name] for name in history.executions.trials]
    mark = [trial.training_utc or trial.started_utc for trial in trials]
    for utc, place, train, validation in history.executions.rows():
        if utc <= until:
            yield trials[place], Span(mark[place], utc, train, validation)
            mark[place] = utc


def best_stored(trials: Iterable[Trial]) -> Trial | None:
    """Return the trial with the best quality of all trials with stored predictions."""
    recorded = [t for t in trials if t.predictions is not None and t.best is not None]
    return max(recorded, key=lambda t: t.best.objective_value if t.best else 0.0, default=None)


def load_predictions(trial: Trial | None, paths: RunPaths) -> tuple[StoredPredictions | None, str]:
    """Return a trial's predictions or the reason why they are unreadable; neither if absent."""
    recorded = None if trial is None else trial.predictions
    if trial is None or recorded is None:
        return None, ""
    path = paths.predictions(trial.replica, trial.id)
    try:
        classes = load_recorded(path, recorded.sha256).classes
    except OSError as error:
        return None, f"{path}: {reason_of(error)}"
    except CheckpointError as error:
        return None, f"its predictions: {error}"
    return StoredPredictions(
        trial=trial.id,
        samples=len(classes),
        sha256=recorded.sha256,
        classes=classes.astype("<u4").tobytes(),
    ), ""


PRECISIONS: tuple[str, ...] = (
    *get_args(TrainingConfig.model_fields["precision"].annotation),
    "tf32",
)
"""Precisions of runs, and one that only peaks have."""


class _Measured(BaseModel):
    utc: Annotated[float, Field(allow_inf_nan=False)]
    rates: Annotated[dict[str, Rate], Field(min_length=1)]


_FILE: TypeAdapter[list[_Measured]] = TypeAdapter(
    Annotated[list[_Measured], BeforeValidator(listed)]
)


def read_peaks(path: Path, precision: str) -> tuple[Rates, ...]:
    """Return the rates measured during a run, or none if there is no such file.

    For kinds that end with the name of a precision, only the run's own precision counts.

    Raises:
        RunDirectoryError: the file is invalid.
    """
    if not path.exists():
        return ()
    try:
        measured = _FILE.validate_json(text_of(path))
    except UsageError as error:
        raise RunDirectoryError(f"{path}: {error}") from None
    except ValidationError as error:
        raise RunDirectoryError(f"{path}: {first_fault(error)}") from None
    return tuple(Rates(utc=each.utc, rates=_own(each.rates, precision)) for each in measured)


def _own(rates: Mapping[str, float], precision: str) -> dict[str, float]:
    others = tuple(f" {name}" for name in PRECISIONS if name != precision)
    return {kind: rate for kind, rate in rates.items() if not kind.endswith(others)}


def trainings(view: RunView, base: TrainingLog) -> tuple[tuple[TrainingLog, ...], list[str]]:
    """Return the training runs of an AIPerf run, and a line about those that were cut off.

    A training run that was interrupted and resumed counts once. One that was cut off by the end of
    the AIPerf run or by a failure gives no time to the target; it is left out unless there is no
    other.
    """
    every, spans = list(chains(view.history)), spans_of(view.history, view.until)
    whole = [chain for chain in every if not cut(chain[-1])]
    left = len(every) - len(whole)
    logs = tuple(_training(view, chain, spans, base) for chain in whole or every)
    outcome = "left out" if whole else "there are no others"
    return logs, [f"{counted(left, 'training run')} did not finish: {outcome}"] if left else []


def _training(
    view: RunView, chain: Sequence[Trial], spans: Spans, base: TrainingLog
) -> TrainingLog:
    first, last = chain[0], chain[-1]
    used = last.started.hyperparameters
    replica = view.history.replicas[last.replica]
    epochs, evaluations = _epochs(chain, spans)
    config = view.manifest.config
    settings = {"trial": last.id, "seed": first.started.seed, **used.model_dump(mode="json")}
    executed = [span for trial in chain for span in spans.get(trial.id, ())]
    run = _run(chain, evaluations, view.history.end_utc)
    # Not the staging of a later attempt, after the training ended.
    end = math.inf if run is None or run.ended is None else run.ended
    staging = tuple(each for each in staging_of([replica]) if each.started <= end)
    predicted, unread = load_predictions(last, view.paths)
    return base.model_copy(
        update={
            "source": f"{base.source}:{last.id}",
            "run": run,
            "succeeded": _succeeded(last, evaluations, base.quality),
            "init": init_of(view.history, [replica]),
            "staging": staging,
            "epochs": epochs,
            "evaluations": evaluations,
            "global_batch_size": used.batch_size,
            "nodes": config.replica.nodes,
            "accelerators": config.replica.ranks,
            "operations": sum(
                credited(last.started, each.train_samples, each.validation_samples)
                for each in executed
            ),
            "settings": {**base.settings, **settings},
            "predictions": predicted,
            "problems": (*_problems(chain), *([unread] if unread else [])),
        }
    )


def _run(
    chain: Sequence[Trial], evaluations: Sequence[Evaluation], end: float | None
) -> Interval | None:
    """Return a training run's interval: from its first step to its last evaluation.

    Weights are stored after it, when the next training run has already begun.
    """
    first, last = chain[0], chain[-1]
    if first.training_utc is None:
        return None
    if not cut(last):
        end = evaluations[-1].ended if evaluations else last.ended_utc
    return Interval(started=first.training_utc, ended=end)


def _succeeded(
    last: Trial, evaluations: Sequence[Evaluation], quality: Quality | None
) -> bool | None:
    """Return whether the target was reached or, without one, whether the training completed."""
    if cut(last):
        return None
    if quality is None or quality.target is None:
        return last.state is not TrialState.FAILED
    return quality.first_reached(evaluations) is not None


def init_of(history: RunHistory, replicas: Sequence[ReplicaHistory]) -> Interval | None:
    """Return the time from the run's start until the last of the given replicas had its data."""
    loaded = [replica.loads[0][0] for replica in replicas if replica.loads]
    start = history.start_utc
    return None if start is None or not loaded else Interval(started=start, ended=max(loaded))


def staging_of(replicas: Sequence[ReplicaHistory]) -> Iterator[Interval]:
    """Yield the intervals in which replicas copied the dataset to their nodes."""
    for replica in replicas:
        for utc, seconds in replica.loads:
            if seconds > 0.0:
                yield Interval(started=utc - seconds, ended=utc)


def _epochs(
    chain: Sequence[Trial], spans: Spans
) -> tuple[tuple[Epoch, ...], tuple[Evaluation, ...]]:
    """Return the complete epochs and their evaluations, without those that were later repeated."""
    epochs: dict[int, Epoch] = {}
    evaluations: dict[int, Evaluation] = {}
    for trial in chain:
        mark = trial.training_utc or trial.started_utc
        for again in [number for number in epochs if number >= trial.started.first_epoch]:
            del epochs[again], evaluations[again]
        starts = _evaluation_starts(spans.get(trial.id, ()))
        for each in trial.evaluations:
            place = bisect_left(starts, each.utc) - 1
            known = place >= 0 and starts[place] >= mark
            epochs[each.epoch] = Epoch(started=mark, ended=each.utc, number=each.epoch)
            evaluations[each.epoch] = Evaluation(
                epoch=each.epoch,
                started=starts[place] if known else None,
                ended=each.utc,
                quality=each.quality,
            )
            mark = each.utc
    return tuple(epochs.values()), tuple(evaluations.values())


def _evaluation_starts(spans: Sequence[Span]) -> list[float]:
    """Return the start times of evaluations, from training samples recorded after an epoch."""
    return [
        after.started
        for before, after in pairwise(spans)
        if after.validation_samples and before.train_samples
    ]


def _problems(chain: Sequence[Trial]) -> Iterator[str]:
    for trial in chain[:-1]:
        yield f"{trial.id} was interrupted: {trial.reason or 'no reason is recorded'}"
    last = chain[-1]
    if cut(last):
        yield f"{last.id} did not finish: {last.reason or 'the run ended first'}"
    elif last.state is TrialState.FAILED:
        yield f"{last.id} failed: {last.reason}"


_STREAMED = {"imagenet"}
"""Datasets whose files are read during training; others are generated or loaded into memory."""
_BYTES = {"float32": 4, "int32": 4, "bool": 1}


class SampleBytes(NamedTuple):
    """Size of a sample in bytes."""

    bytes: float
    of: Literal["files", "tensors"]
    """Whether the size is that of the files or of the tensors; files may be smaller."""


class RunWork(NamedTuple):
    """The work of a run."""

    view: RunView
    started: ReplicaStarted
    """Start record of the first replica."""
    dataset: DatasetInfo
    ranks: int
    """Workers per replica."""
    workers: int
    """Workers of all replicas."""
    workers_on_host: int
    """Maximum number of workers per host."""
    tf32: bool
    """Whether the framework may compute fp32 products in TF32."""
    sample: SampleBytes | None
    """Size of a sample; None if samples have different sizes."""
    from_storage: str
    """Reason why samples are not read from storage during training; empty if they are."""
    trials: tuple[Trial, ...]
    """Trials whose records state their training time."""
    problems: tuple[str, ...]

    def graph(self, graph_hash: str) -> Graph:
        """Return the graph of a trial. Raises NotMeasuredError if it is lost."""
        try:
            return self.view.run_graphs.load(graph_hash)
        except GraphError as error:
            raise NotMeasuredError(str(error)) from None


def work_of(path: Path) -> RunWork:
    """Read the work of a run directory.

    Raises:
        NotMeasuredError: the records do not state the work and its time.
        AIPerfError: the run directory cannot be read.
    """
    view = RunView.read(RunPaths(path))
    if view.manifest.simulated or view.manifest.config.engine.name == "simulated":
        raise NotMeasuredError("its time is simulated")
    replicas = view.history.replicas.values()
    known = [(r, r.started, r.dataset) for r in replicas if r.started and r.dataset]
    if not known:
        raise NotMeasuredError("no replica has recorded that it loaded its dataset")
    trials = tuple(trial for trial in view.history.trials.values() if _timed(trial))
    if not trials:
        raise NotMeasuredError("no trial's record states how long it trained")
    first, started, dataset = known[0]
    all_started = [each for _, each, _ in known]
    ranks = max(1, len(started.hosts))
    return RunWork(
        view=view,
        started=started,
        dataset=dataset,
        ranks=ranks,
        workers=ranks * len(known),
        workers_on_host=_most_on_a_host(all_started),
        tf32=_uses_tf32(first, started.engine),
        sample=_sample_bytes(dataset, first),
        from_storage=_from_storage(view, dataset),
        trials=trials,
        problems=tuple(_work_problems(view, [each.machine for each in all_started])),
    )


def _uses_tf32(replica: ReplicaHistory, engine: str) -> bool:
    """Return whether fp32 products use TF32 on capable devices, according to the ranks.

    Versions that did not report it used TensorFlow's default, which is TF32.
    """
    reported = [rank.process.arithmetic for rank in replica.described.values()]
    if not reported:
        return engine == "tensorflow"
    return any("tf32" in each.values() for each in reported)


def _timed(trial: Trial) -> bool:
    return trial.train_samples > 0 and trial.seconds.get(TimePhase.TRAIN, 0.0) > 0.0


def _most_on_a_host(started: list[ReplicaStarted]) -> int:
    hosts = [host for each in started for host in (each.hosts or (each.machine.host,))]
    return max(hosts.count(host) for host in hosts)


def _sample_bytes(dataset: DatasetInfo, replica: ReplicaHistory) -> SampleBytes | None:
    """Return a sample's bytes, from the files if their copy was counted."""
    if replica.staged_bytes:
        samples = dataset.train_samples + dataset.validation_samples
        return SampleBytes(replica.staged_bytes / samples, "files")
    sizes = [_tensor_bytes(spec) for spec in (*dataset.inputs.values(), *dataset.targets.values())]
    known = [size for size in sizes if size is not None]
    return SampleBytes(sum(known), "tensors") if len(known) == len(sizes) else None


def _tensor_bytes(spec: TensorSpec) -> int | None:
    sizes = [size for size in spec.shape if size is not None]
    return None if len(sizes) < len(spec.shape) else _BYTES[spec.dtype] * math.prod(sizes)


def _from_storage(view: RunView, dataset: DatasetInfo) -> str:
    settings = view.manifest.config.dataset
    if settings.name not in _STREAMED:
        return f"the dataset {dataset.name} is in memory"
    if settings.cache == "memory":
        return "the dataset was loaded into memory first"
    return ""


def _work_problems(view: RunView, machines: list[Machine]) -> Iterator[str]:
    untimed = sum(t.train_samples > 0 and not _timed(t) for t in view.history.trials.values())
    if untimed:
        yield f"{untimed} trials were cut off, and no record states how long they trained"
    if len({(m.cpu, len(m.cores), m.accelerators) for m in machines}) > 1:
        yield "its replicas ran on different machines; the first machine is assumed for all"
