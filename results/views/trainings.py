"""The trainings of a run without a search, and where the time of each went until it was over.

A training is a trial, or several of which each goes on with what interrupted the one before. Its
time is divided as MLPerf HPC does: T = T_staging + T_compute + T_extra. [Farrell et al. 2021,
equation 1]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aiperf_hpc.run.history import ReplicaHistory, RunHistory, Trial
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
    """Whether it reached the target; None where none was asked for."""
    epochs: int
    """Complete ones, those that an interruption made undone only once."""
    seconds: float
    """From the start of staging, or of its first trial, to its last evaluation."""
    staging_seconds: float
    """What its replica took to bring the dataset to its node: before its first training, and again
    where another life of the replica went on with this one."""
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
