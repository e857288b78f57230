"""The state of a trial: what it executed and reached, and how far it is."""

from __future__ import annotations

import math
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from aiperf_hpc.objective import ACCURACY
from aiperf_hpc.run.history import RunHistory, Trial
from aiperf_hpc.trial import DatasetInfo, MorphismData, Value

NO_SAMPLES = (0, 0)
"""Samples of training and of validation."""


class TrialStatus(Value):
    """One trial; what it executed and reached, and its time, are those until the run's end."""

    id: str
    """Its name."""
    replica: str
    """The replica."""
    round: int
    """The round of its replica, counted from 1."""
    phase: str
    """The phase of its round."""
    state: str
    """Its state."""
    reason: str
    """Why it is in its state; may be empty."""
    graph: str
    """The hash of its graph."""
    parent: str | None
    """The trial that it grew from; null for the initial network."""
    morphisms: tuple[MorphismData, ...]
    """What was done to the parent's network, in order."""
    batch_size: int
    """Samples of a training step, on all ranks together."""
    kernel_size: int | None
    """The size of inserted convolutions, where it was chosen."""
    learning_rate: float
    """The peak of the learning rate."""
    parameters: int
    """How many numbers are trained."""
    depth: int
    """Layers on the longest path through the network."""
    train_operations: int
    """Operations credited for one training sample."""
    validation_operations: int
    """Operations credited for one validation sample."""
    epochs: int
    """Epochs that were evaluated."""
    epoch_limit: int
    """Epochs at most."""
    train_samples: int
    """Training samples that were executed."""
    validation_samples: int
    """Validation samples that were executed."""
    best_accuracy: float | None
    """The highest accuracy that an evaluation of it observed; None where the run has another
    measure."""
    best_quality: float | None = None
    """The best quality, by the run's measure, that an evaluation of it observed."""
    predicted_accuracy: float | None
    """The accuracy that it would have after longer training, by its first epochs; in warm-up
    alone."""
    started_seconds: float
    """Seconds from the run's start to the trial's."""
    seconds: float
    """Seconds from its start to its end, or until now."""


def trial_statuses(history: RunHistory, trials: Iterable[Trial], now: float) -> list[TrialStatus]:
    """Return some trials as they are at ``now``, UTC seconds, or were when the run ended."""
    if (end := history.end_utc) is None:
        return [_status(history, trial, now, math.inf, NO_SAMPLES) for trial in trials]
    late = history.executions.after(end)
    return [_status(history, t, end, end, late.get(t.id, NO_SAMPLES)) for t in trials]


def _status(
    history: RunHistory, trial: Trial, now: float, end: float, late: tuple[int, int]
) -> TrialStatus:
    """Return what a trial was until ``end``, but for the ``late`` samples of it."""
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
        "best_accuracy": best.quality if best is not None and best.measure is ACCURACY else None,
        "best_quality": None if best is None else best.quality,
        "predicted_accuracy": trial.ended.predicted_accuracy if trial.ended else None,
        "started_seconds": trial.started_utc - (history.origin_utc or trial.started_utc),
        "seconds": max(0.0, min(trial.ended_utc or now, end) - trial.started_utc),
    }
    return TrialStatus(**values)


class EpochsTrained(NamedTuple):
    """The epochs of a network that were trained, those of its earlier trials included."""

    evaluated: int
    """The last epoch that was evaluated; before the trial's first one, where it began."""
    share: float
    """The share of the next epoch's training samples that were executed, from 0 to 1."""

    @property
    def total(self) -> float:
        """Both together: 2.5 in the midst of the third epoch."""
        return self.evaluated + self.share


def epochs_trained(trial: Trial, dataset: DatasetInfo | None) -> EpochsTrained:
    """Return how far a trial is, by its records.

    Args:
        trial: the trial.
        dataset: what its replica trains on; None where that is not recorded, and no share is known.
    """
    evaluated = trial.evaluations[-1].epoch if trial.evaluations else trial.started.first_epoch - 1
    if dataset is None or not dataset.train_samples:
        return EpochsTrained(evaluated, 0.0)
    since = trial.train_samples - len(trial.evaluations) * dataset.train_samples
    return EpochsTrained(evaluated, min(1.0, max(0.0, since / dataset.train_samples)))
