"""Trials: their state and progress, and the models that a run without a search trains.

A training run is a trial, or a chain of trials that each resume the interrupted previous one. Its
time is split as in MLPerf HPC: T = T_staging + T_compute + T_extra. [Farrell et al. 2021, equation
1]

**Strong scaling**: one replica over all nodes trains one model at a time. **Weak scaling**: several
replicas train one model each, with different seeds; the result is models per minute. [MLPerf HPC,
training_policies, hpc_training_rules.adoc: time to train, and models per minute]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from statistics import fmean, median
from typing import Literal, NamedTuple

from aiperf_hpc.formatting import counted, duration, quality, si
from aiperf_hpc.objective import ACCURACY, QUALITY_METRICS, QualityMetric
from aiperf_hpc.ops_counter.score import Weight, credited, quality_ratio, weighted
from aiperf_hpc.run.history import ReplicaHistory, RunHistory, Trial
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.trial import DatasetInfo, MorphismData, TrialState, Value

QUEUED = "queued"
"""Key of the queued candidates among the numbers of trials by state."""
NO_SAMPLES = (0, 0)
"""Numbers of training and validation samples."""


class TrialStatus(Value):
    """Status of one trial; its samples, quality and time are counted until the run's end."""

    id: str
    """Name of the trial."""
    replica: str
    """Replica of the trial."""
    round: int
    """Round of its replica, counted from 1."""
    phase: str
    """Phase of its round."""
    state: str
    """State of the trial."""
    reason: str
    """Reason for the state; may be empty."""
    graph: str
    """Hash of its graph."""
    parent: str | None
    """Trial of the parent network; null for the initial network."""
    morphisms: tuple[MorphismData, ...]
    """Morphisms applied to the parent network, in order."""
    batch_size: int
    """Global batch size: samples per training step over all ranks."""
    kernel_size: int | None
    """Kernel size of inserted convolutions, if it was chosen."""
    learning_rate: float
    """Peak learning rate."""
    parameters: int
    """Number of trainable parameters."""
    depth: int
    """Number of layers on the longest path through the network."""
    train_operations: int
    """Operations credited for one training sample."""
    validation_operations: int
    """Operations credited for one validation sample."""
    epochs: int
    """Number of evaluated epochs."""
    epoch_limit: int
    """Maximum number of epochs."""
    train_samples: int
    """Number of executed training samples."""
    validation_samples: int
    """Number of executed validation samples."""
    best_accuracy: float | None
    """Highest accuracy that an evaluation of it observed; None if the run has another metric."""
    best_quality: float | None = None
    """Best quality of its evaluations, in the run's metric."""
    predicted_accuracy: float | None
    """Accuracy predicted from its first epochs for longer training; only in the warm-up phase."""
    started_seconds: float
    """Seconds from the run's start to the trial's start."""
    seconds: float
    """Seconds from its start to its end, or until now."""


def trial_statuses(history: RunHistory, trials: Iterable[Trial], now: float) -> list[TrialStatus]:
    """Return the status of trials at ``now`` (UTC seconds) or at the run's end."""
    if (end := history.end_utc) is None:
        return [_status(history, trial, now, math.inf, NO_SAMPLES) for trial in trials]
    late = history.executions.after(end)
    return [_status(history, t, end, end, late.get(t.id, NO_SAMPLES)) for t in trials]


def _status(
    history: RunHistory, trial: Trial, now: float, end: float, late: tuple[int, int]
) -> TrialStatus:
    """Return the status of a trial until ``end``, without its ``late`` samples."""
    started, used = trial.started, trial.started.hyperparameters
    evaluations = [each for each in trial.evaluations if each.utc <= end]
    best = max(evaluations, key=attrgetter("objective_value"), default=None)
    values = {
        **TrialStatus.fields_from(started),
        **TrialStatus.fields_from(used),
        "id": trial.id,
        "replica": trial.replica,
        "phase": str(started.phase),
        "state": str(trial.state),
        "reason": trial.reason,
        "epochs": len(evaluations),
        "train_samples": trial.train_samples - late[0],
        "validation_samples": trial.validation_samples - late[1],
        "best_accuracy": best.quality if best and best.quality_metric is ACCURACY else None,
        "best_quality": None if best is None else best.quality,
        "predicted_accuracy": trial.ended.predicted_accuracy if trial.ended else None,
        "started_seconds": trial.started_utc - (history.origin_utc or trial.started_utc),
        "seconds": max(0.0, min(trial.ended_utc or now, end) - trial.started_utc),
    }
    return TrialStatus(**values)


class EpochsTrained(NamedTuple):
    """Trained epochs of a network, including those of its previous trials."""

    evaluated: int
    """Last evaluated epoch; before the first one, the epoch at which the trial started."""
    fraction: float
    """Fraction of the next epoch's training samples that were executed, from 0 to 1."""

    @property
    def total(self) -> float:
        """Sum of both: 2.5 in the middle of the third epoch."""
        return self.evaluated + self.fraction


def epochs_trained(trial: Trial, dataset: DatasetInfo | None) -> EpochsTrained:
    """Return the progress of a trial from its records.

    Args:
        trial: records of the trial.
        dataset: dataset of its replica; None if not recorded, then the fraction is unknown.
    """
    evaluated = trial.evaluations[-1].epoch if trial.evaluations else trial.started.first_epoch - 1
    if dataset is None or not dataset.train_samples:
        return EpochsTrained(evaluated, 0.0)
    since = trial.train_samples - len(trial.evaluations) * dataset.train_samples
    return EpochsTrained(evaluated, min(1.0, max(0.0, since / dataset.train_samples)))


def trials_text(by_state: Mapping[str, int], *, ended: bool) -> str:
    """Return the number of trials by state, and the candidates that wait, or waited, for one."""
    counts = [
        f"{number} {state}" for state, number in by_state.items() if number and state != QUEUED
    ]
    if queued := by_state.get(QUEUED):
        outcome = "not trained" if ended else "queued"
        counts.append(f"{counted(queued, 'candidate')} {outcome}")
    return ", ".join(counts) or "none"


PATIENCE = "no lower validation loss"
"""Prefix of the end reason of trials that early stopping ended."""


class TrainingTime(Value):
    """A completed training with its seconds, the sum of the three parts."""

    trial: str
    """Trial, or the last trial of a chain of resumed ones."""
    replica: str
    """Replica of the training, or of its last trial."""
    seed: int
    """Seed of the initial weights and the order of samples."""
    reached: bool | None
    """Whether it reached the target; None if there is no target."""
    epochs: int
    """Number of completed epochs; epochs repeated after an interruption count once."""
    seconds: float
    """Seconds from the start of staging, or of its first trial, to its last evaluation."""
    staging_seconds: float
    """Seconds that its replica spent on staging the dataset to its node: before its first training,
    and again if another attempt of the replica resumed this one."""
    compute_seconds: float
    """Seconds spent in epochs, including evaluations."""
    extra_seconds: float
    """Other seconds: network construction and interruptions."""


def training_times(
    history: RunHistory, until: float, target: float | None
) -> tuple[TrainingTime, ...]:
    """Return the completed training runs, in the order of their start.

    Args:
        history: records of a run without a search.
        until: time in UTC seconds; training runs that ended later are ignored.
        target: quality at which a training run ends.
    """
    ended = (chain for chain in chains(history) if not cut(chain[-1]))
    return tuple(
        _time(history.replicas[chain[-1].replica], chain, target)
        for chain in ended
        if chain[-1].evaluations and chain[-1].evaluations[-1].utc <= until
    )


def chains(history: RunHistory) -> Iterator[tuple[Trial, ...]]:
    """Yield trials in order of their start, each with the interrupted ones that it resumes before
    it."""
    followed = {trial.started.resumes for trial in history.trials.values()}
    for trial in sorted(history.trials.values(), key=lambda each: each.started_utc):
        if trial.id in followed:
            continue
        chain = [trial]
        while (before := history.trials.get(chain[0].started.resumes or "")) is not None:
            chain.insert(0, before)
        yield tuple(chain)


def cut(trial: Trial) -> bool:
    """Return whether a trial was cut by the run's end or its replica's failure."""
    if trial.ended is None:
        return True
    return trial.state is TrialState.STOPPED and not trial.reason.startswith(PATIENCE)


def _time(replica: ReplicaHistory, chain: Sequence[Trial], target: float | None) -> TrainingTime:
    first, last = chain[0], chain[-1]
    began, ended = first.started_utc, last.evaluations[-1].utc
    before = sum(seconds for utc, seconds in replica.loads if utc <= began)
    between = sum(seconds for utc, seconds in replica.loads if began < utc <= ended)
    compute = sum(_in_epochs(trial) for trial in chain)
    reached = None
    if target is not None:
        reached = any(e.quality_metric.reaches(e.quality, target) for e in last.evaluations)
    return TrainingTime(
        trial=last.id,
        replica=last.replica,
        seed=first.started.seed,
        reached=reached,
        epochs=last.evaluations[-1].epoch,
        seconds=before + ended - began,
        staging_seconds=before + between,
        compute_seconds=compute,
        extra_seconds=ended - began - between - compute,
    )


def _in_epochs(trial: Trial) -> float:
    """Return the seconds from a trial's first step to its last complete evaluation."""
    if trial.training_utc is None or not trial.evaluations:
        return 0.0
    return trial.evaluations[-1].utc - trial.training_utc


MINUTE = 60.0


class ValidFlopsStatus(Value):
    """HPC AI500's metric over all completed models."""

    flops: float
    """Operations per second: averaged over the models if they are trained one at a time; otherwise
    those of all models from the first step of the first to the end of the last."""
    quality: float
    """Mean quality of the models' last evaluations."""
    target: float
    """Target quality of the workload."""
    exponent: int
    """Exponent of the quality ratio in the penalty."""
    vflops: float
    """Mean or total, like ``flops``, of FLOPS x (quality / target)^exponent of each model."""


class ModelsStatus(Value):
    """Models of a run without a search."""

    scaling: Literal["strong", "weak"]
    """Strong if one replica trains one model at a time, weak if several train one each."""
    concurrent: int
    """Number of concurrently trained models, i.e. of replicas."""
    nodes_per_model: int
    """Number of nodes per model."""
    ranks_per_model: int
    """Number of data-parallel ranks per model."""
    target: float | None
    """Quality at which a training run ends; None if it ends after a number of epochs."""
    started: int
    """Number of models whose training has started."""
    completed: int
    """Number of completed and evaluated models."""
    reached: int
    """Number of models that reached the target."""
    median_seconds: float | None
    """Median time to the target in seconds, including staging."""
    models_per_minute: float | None
    """Models per minute: models that reached the target (or were completed, if there is none),
    divided by the minutes from the first one's first step to the last one's last evaluation."""
    valid_flops: ValidFlopsStatus | None = None
    """HPC AI500's metric; None if the workload or the dataset is not HPC AI500's, or no model is
    complete."""


def models_status(
    history: RunHistory,
    manifest: RunManifest,
    metric: QualityMetric,
    weight: Weight | None,
    until: float,
) -> ModelsStatus | None:
    """Return the results of a run's models, or None for a run with a search.

    Args:
        history: records of the run.
        manifest: manifest of the run.
        metric: quality metric of the run.
        weight: HPC AI500's weighting of the quality, or None.
        until: end of the run or current time, UTC seconds.
    """
    config = manifest.config
    if config.search.searches:
        return None
    target = config.training.target
    begun = {chain[-1].id: chain for chain in chains(history)}
    times = training_times(history, until, target)
    reached = [each for each in times if each.reached]
    good = [begun[each.trial] for each in times if each.reached is not False]
    minutes = _seconds(good) / MINUTE
    return ModelsStatus(
        scaling="weak" if manifest.replicas > 1 else "strong",
        concurrent=manifest.replicas,
        nodes_per_model=config.replica.nodes,
        ranks_per_model=config.replica.ranks,
        target=target,
        started=len(begun),
        completed=len(times),
        reached=len(reached),
        median_seconds=median(each.seconds for each in reached) if reached else None,
        models_per_minute=len(good) / minutes if minutes > 0.0 else None,
        valid_flops=_valid_flops(
            [begun[each.trial] for each in times], metric, weight, weak=manifest.replicas > 1
        ),
    )


Chain = Sequence[Trial]
"""A training run: a trial with the interrupted ones that it resumes."""


def _seconds(found: Sequence[Chain]) -> float:
    """Return the seconds from the first step of any training run to the last end, or 0."""
    starts = [chain[0].training_utc for chain in found if chain[0].training_utc is not None]
    ends = [chain[-1].evaluations[-1].utc for chain in found]
    return max(ends) - min(starts) if starts and ends else 0.0


def _operations(chain: Chain) -> int:
    """Return the executed operations of a training run, including repeated epochs."""
    return sum(credited(t.started, t.train_samples, t.validation_samples) for t in chain)


def _valid_flops(
    ended: Sequence[Chain], metric: QualityMetric, weight: Weight | None, *, weak: bool
) -> ValidFlopsStatus | None:
    if weight is None or _seconds(ended) <= 0.0:
        return None
    higher = metric.goal == "maximize"
    reached = [chain[-1].evaluations[-1].quality for chain in ended]
    seconds = [_seconds(ended if weak else [chain]) for chain in ended]
    rates = [_operations(c) / took for c, took in zip(ended, seconds, strict=True)]
    weighed: list[float] = []
    for rate, achieved in zip(rates, reached, strict=True):
        ratio = quality_ratio(achieved, weight.target, higher_is_better=higher)
        found = None if ratio is None else weighted(rate, ratio, weight.exponent)
        if found is None:
            return None
        weighed.append(found)
    combined = sum if weak else fmean
    return ValidFlopsStatus(
        flops=combined(rates),
        quality=fmean(reached),
        target=weight.target,
        exponent=weight.exponent,
        vflops=combined(weighed),
    )


def model_lines(found: ModelsStatus | None, metric: str) -> list[str]:
    """Return the lines on models for a terminal; empty for a run with a search."""
    if found is None:
        return []
    lines = [", ".join(_how(found)), "; ".join(_what(found, metric))]
    flops = found.valid_flops
    return lines if flops is None else [*lines, _valid_flops_words(flops, metric)]


def _what(found: ModelsStatus, metric: str) -> Iterator[str]:
    if not found.completed:
        yield f"none of {found.started} has ended"
        return
    said = f"{found.completed} trained"
    if found.target is not None:
        said = f"{found.reached} of {found.completed} reached {quality(found.target, metric)}"
    if found.median_seconds is not None:
        said += f", in {duration(found.median_seconds)} each (median)"
    yield said
    if found.models_per_minute is not None:
        yield f"{found.models_per_minute:.4g} models per minute"
    if without := found.started - found.completed:  # In progress, failed, or interrupted.
        yield f"{without} more did not finish"


def _how(found: ModelsStatus) -> Iterator[str]:
    many = (
        f"{found.concurrent} concurrent models" if found.concurrent > 1 else "one model at a time"
    )
    yield f"{found.scaling} scaling: {many}"
    yield f"each on {found.nodes_per_model} node{'s' * (found.nodes_per_model > 1)}"
    yield f"{found.ranks_per_model} rank{'s' * (found.ranks_per_model > 1)}"


def _valid_flops_words(found: ValidFlopsStatus, metric: str) -> str:
    reached, target = quality(found.quality, metric), quality(found.target, metric)
    return (
        f"valid FLOPS {si(found.vflops, 'VFLOPS')}, of {si(found.flops, 'FLOPS')}: each model's × "
        f"(its {QUALITY_METRICS[metric].label} / {target})^{found.exponent}, {reached} in the mean"
    )
