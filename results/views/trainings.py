"""Models of a run without a search: time of each training run, and weak and strong scaling.

A training run is a trial, or a chain of trials that each resume the interrupted previous one. Its
time is split as in MLPerf HPC: T = T_staging + T_compute + T_extra. [Farrell et al. 2021, equation
1]

**Strong scaling**: one replica over all nodes trains one model at a time. **Weak scaling**: several
replicas train one model each, with different seeds; the result is models per minute. [MLPerf HPC,
training_policies, hpc_training_rules.adoc: time to train, and models per minute]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import Literal

from aiperf_hpc.formatting import duration, quality, si
from aiperf_hpc.objective import QUALITY_METRICS, QualityMetric
from aiperf_hpc.ops_counter.score import Weight, credited, quality_ratio, weighted
from aiperf_hpc.run.history import ReplicaHistory, RunHistory, Trial
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.trial import TrialState, Value

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
