"""State of a trial: executed samples, quality and progress."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import NamedTuple

from aiperf_hpc.objective import ACCURACY
from aiperf_hpc.results.views.resources import counted
from aiperf_hpc.run.history import RunHistory, Trial
from aiperf_hpc.trial import DatasetInfo, MorphismData, Value

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
