"""The models of a run without a search: the time of each training, and weak and strong scaling.

A training is a trial, or several of which each resumes the interrupted one before. Its time is
divided as MLPerf HPC does: T = T_staging + T_compute + T_extra. [Farrell et al. 2021, equation 1]

**Strong scaling**: one replica over all nodes trains one model at a time. **Weak scaling**: several
replicas train a model each, of unequal seeds, and what counts is how many a minute. [MLPerf HPC,
training_policies, hpc_training_rules.adoc: time to train, and models per minute]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import Literal

from aiperf_hpc.formatting import duration, quality, si
from aiperf_hpc.objective import MEASURES, Measure
from aiperf_hpc.ops_counter.score import Weight, quality_ratio, weighted
from aiperf_hpc.run.history import ReplicaHistory, RunHistory, Trial
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.trial import TrialState, Value

PATIENCE = "no lower validation loss"
"""How the reason of a trial begins that patience ended, and not the end of its run."""


class TrainingTime(Value):
    """A training that came to its end, and its seconds: the sum of the three parts."""

    trial: str
    """The trial, or the last one of those that it was interrupted into."""
    replica: str
    """The replica that trained it, or the last part of it."""
    seed: int
    """Of its initial weights and its order of samples."""
    reached: bool | None
    """Whether it reached the target; None where none was requested."""
    epochs: int
    """Complete ones, those that an interruption made undone only once."""
    seconds: float
    """From the start of staging, or of its first trial, to its last evaluation."""
    staging_seconds: float
    """What its replica took to bring the dataset to its node: before its first training, and again
    where another attempt of the replica resumed this one."""
    compute_seconds: float
    """In epochs, evaluations included."""
    extra_seconds: float
    """The rest: building the network, and what an interruption took."""


def training_times(
    history: RunHistory, until: float, target: float | None
) -> tuple[TrainingTime, ...]:
    """Return the trainings that came to their end, in the order of their start.

    Args:
        history: of a run without a search.
        until: UTC seconds; what ended later does not count.
        target: the quality at which a training is over.
    """
    ended = (chain for chain in chains(history) if not cut(chain[-1]))
    return tuple(
        _time(history.replicas[chain[-1].replica], chain, target)
        for chain in ended
        if chain[-1].evaluations and chain[-1].evaluations[-1].utc <= until
    )


def chains(history: RunHistory) -> Iterator[tuple[Trial, ...]]:
    """Yield trials in order of their start, each behind the interrupted ones that it goes on
    with."""
    followed = {trial.started.resumes for trial in history.trials.values()}
    for trial in sorted(history.trials.values(), key=lambda each: each.started_utc):
        if trial.id in followed:
            continue
        chain = [trial]
        while (before := history.trials.get(chain[0].started.resumes or "")) is not None:
            chain.insert(0, before)
        yield tuple(chain)


def cut(trial: Trial) -> bool:
    """Return whether nothing of its own ended a trial, but the run's end or its replica's death."""
    if trial.ended is None:
        return True
    return trial.state is TrialState.STOPPED and not trial.reason.startswith(PATIENCE)


def _time(replica: ReplicaHistory, chain: Sequence[Trial], target: float | None) -> TrainingTime:
    first, last = chain[0], chain[-1]
    began, ended = first.started_utc, last.evaluations[-1].utc
    before = sum(seconds for utc, seconds in replica.loads if utc <= began)
    between = sum(seconds for utc, seconds in replica.loads if began < utc <= ended)
    compute = sum(_in_epochs(trial) for trial in chain)
    return TrainingTime(
        trial=last.id,
        replica=last.replica,
        seed=first.started.seed,
        reached=None if target is None else _reaches(last, target),
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


def _reaches(trial: Trial, target: float) -> bool:
    return any(each.measure.reaches(each.quality, target) for each in trial.evaluations)


MINUTE = 60.0


class ValidFlopsStatus(Value):
    """HPC AI500's measure, of all models that came to their end."""

    flops: float
    """Operations over time: of one model at a time the mean over the models, of several at once
    those of all from the first one's first step to the last one's end."""
    quality: float
    """The mean of what their last evaluations found."""
    target: float
    """The quality that the workload is to reach."""
    exponent: int
    """Of the ratio of both, in the penalty."""
    vflops: float
    """The same of FLOPS x (quality / target)^exponent of each model."""


class ModelsStatus(Value):
    """The models of a run that trains one network as it is."""

    scaling: Literal["strong", "weak"]
    """Strong where one replica trains a model at a time, weak where several train one each."""
    at_once: int
    """Models that are trained at once: the replicas."""
    nodes_each: int
    """Nodes that train one model."""
    ranks_each: int
    """Ranks that train one model, data-parallel."""
    target: float | None
    """The quality at which a model's training is done; None where it ends by its epochs."""
    begun: int
    """Models whose training has begun."""
    ended: int
    """Models that came to their end, and were evaluated."""
    reached: int
    """Those of them that reached the target."""
    median_seconds: float | None
    """The median of their times to the target, staging included."""
    models_per_minute: float | None
    """Models that reached the target, or that came to their end where there is none, over the
    minutes from the first one's first step to the last one's last evaluation."""
    valid_flops: ValidFlopsStatus | None = None
    """None where the workload is none of HPC AI500's, its dataset another, or no model has come to
    its end."""


def models_status(
    history: RunHistory,
    manifest: RunManifest,
    measure: Measure,
    weight: Weight | None,
    until: float,
) -> ModelsStatus | None:
    """Return what there is to say of a run's models; None of a run that searches.

    Args:
        history: the run's records.
        manifest: the run.
        measure: of its quality.
        weight: how HPC AI500 weights that; None where it does not.
        until: the run's end, or now, UTC seconds.
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
        at_once=manifest.replicas,
        nodes_each=config.replica.nodes,
        ranks_each=config.replica.ranks,
        target=target,
        begun=len(begun),
        ended=len(times),
        reached=len(reached),
        median_seconds=median(each.seconds for each in reached) if reached else None,
        models_per_minute=len(good) / minutes if minutes > 0.0 else None,
        valid_flops=_valid_flops(
            [begun[each.trial] for each in times], measure, weight, weak=manifest.replicas > 1
        ),
    )


Chain = Sequence[Trial]
"""A training: a trial, behind the interrupted ones that it goes on with."""


def _seconds(found: Sequence[Chain]) -> float:
    """Return the time from the first step of some trainings to the last end; 0 of none."""
    starts = [chain[0].training_utc for chain in found if chain[0].training_utc is not None]
    ends = [chain[-1].evaluations[-1].utc for chain in found]
    return max(ends) - min(starts) if starts and ends else 0.0


def _operations(chain: Chain) -> int:
    """Return what a training executed, epochs that were done again too."""
    return sum(
        trial.train_samples * trial.started.train_operations
        + trial.validation_samples * trial.started.validation_operations
        for trial in chain
    )


def _valid_flops(
    ended: Sequence[Chain], measure: Measure, weight: Weight | None, *, weak: bool
) -> ValidFlopsStatus | None:
    if weight is None or _seconds(ended) <= 0.0:
        return None
    higher = measure.goal == "maximize"
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


def model_lines(found: ModelsStatus | None, measure: str) -> list[str]:
    """Return what a terminal shows of them: nothing of a run that searches."""
    return [] if found is None else list(_lines(found, measure))


def _lines(found: ModelsStatus, measure: str) -> Iterator[str]:
    yield ", ".join(_how(found))
    yield "; ".join(_what(found, measure))
    if found.valid_flops is not None:
        yield _valid_flops_words(found.valid_flops, measure)


def _what(found: ModelsStatus, measure: str) -> Iterator[str]:
    if not found.ended:
        yield f"none of {found.begun} has come to its end"
        return
    said = f"{found.ended} trained"
    if found.target is not None:
        said = f"{found.reached} of {found.ended} reached {quality(found.target, measure)}"
    if found.median_seconds is not None:
        said += f", in {duration(found.median_seconds)} each (median)"
    yield said
    if found.models_per_minute is not None:
        yield f"{found.models_per_minute:.4g} models a minute"
    if without := found.begun - found.ended:  # Under way, failed, or cut by an interruption.
        yield f"{without} more without an end"


def _how(found: ModelsStatus) -> Iterator[str]:
    many = f"{found.at_once} models at once" if found.at_once > 1 else "one model at a time"
    yield f"{found.scaling} scaling: {many}"
    yield f"each on {found.nodes_each} node{'s' * (found.nodes_each > 1)}"
    yield f"{found.ranks_each} rank{'s' * (found.ranks_each > 1)}"


def _valid_flops_words(found: ValidFlopsStatus, measure: str) -> str:
    reached, target = quality(found.quality, measure), quality(found.target, measure)
    return (
        f"valid FLOPS {si(found.vflops, 'VFLOPS')}, of {si(found.flops, 'FLOPS')}: each model's × "
        f"(its {MEASURES[measure].label} / {target})^{found.exponent}, {reached} in the mean"
    )
