"""How far a trial that is under way has trained."""

from __future__ import annotations

from typing import NamedTuple

from aiperf_hpc.run.history import Trial
from aiperf_hpc.trial import DatasetInfo


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
