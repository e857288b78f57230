"""Baseline of a metric: the result of a trivial predictor on the validation samples.

A trivial predictor reads no input, so that its result depends only on the targets. The targets are
collected while a network is evaluated, on each rank for its own part, and no sample is read twice.
Each metric names its predictor (``QualityMetric.baseline``), and ``PREDICTORS`` defines how to
compute its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.objective import Objective
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.run.records import BaselineMeasured
from aiperf_hpc.trial import DatasetInfo

MOST_CLASSES = 1000
"""Maximum number of box classes; no supported dataset has as many."""

Targets = Mapping[str, NDArray[Any]]
"""Targets of a batch by the objective's names, each (samples, \\*shape)."""
Totals = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Predictor:
    """A predictor that reads no input."""

    totals: Callable[[Targets, DatasetInfo], Totals]
    """Returns a batch's totals, which are summed over batches and ranks; zeros for no samples."""
    sums: Callable[[Totals], dict[str, float]]
    """Returns the metric's sums from the totals of all samples."""


def _of_each_class(targets: Targets, info: DatasetInfo) -> Totals:
    """Return the number of samples per class, (classes,)."""
    classes = _classes(info)
    counts = np.bincount(targets["label"], minlength=classes)
    if len(counts) > classes:
        raise DatasetError(f"a label of {len(counts) - 1}, and classes up to {classes - 1}")
    return counts.astype(np.float64)


def _from_zeros(targets: Targets, _: DatasetInfo) -> Totals:
    """Return the sum of all absolute values, and the number of values."""
    values = np.abs(targets["values"], dtype=np.float64)
    return np.array([values.sum(), values.size], np.float64)


def _of_background(targets: Targets, info: DatasetInfo) -> Totals:
    """Return the sum over samples of the mean IoU of predicting class 0 everywhere, (1,).

    The IoU of class 0 is its fraction of the pixels. The IoU of another class is 1 if the mask
    does not contain it, else 0.
    """
    mask, classes = targets["mask"], _classes(info)
    ratios = [(mask == 0).mean(axis=(1, 2), dtype=np.float64)]
    ratios += [(mask != number).all(axis=(1, 2)).astype(np.float64) for number in range(1, classes)]
    return np.array([np.mean(ratios, axis=0).sum()], np.float64)


def _classes(info: DatasetInfo) -> int:
    if info.classes is None:
        raise DatasetError(f"dataset '{info.name}' does not state its number of classes")
    return info.classes


def _of_boxes(targets: Targets, _: DatasetInfo) -> Totals:
    """Return the number of boxes per class, (MOST_CLASSES,)."""
    classes = targets["boxes"][..., -1]
    return np.bincount(classes[classes >= 0], minlength=MOST_CLASSES).astype(np.float64)


PREDICTORS: dict[str, Predictor] = {
    "accuracy": Predictor(_of_each_class, lambda counts: {"correct": float(counts.max())}),
    "mean_absolute_error": Predictor(
        _from_zeros,
        lambda totals: {"absolute_error": float(totals[0]), "values": float(totals[1])},
    ),
    "intersection_over_union": Predictor(
        _of_background, lambda totals: {"intersection_over_union": float(totals[0])}
    ),
    "mean_average_precision": Predictor(
        _of_boxes,
        lambda boxes: {"average_precision": 0.0, "classes": float(np.count_nonzero(boxes))},
    ),
}
"""The trivial predictors, by the names of metrics."""


class Tally:
    """The baseline of one rank's part of the samples."""

    def __init__(self, objective: Objective, info: DatasetInfo) -> None:
        self._info = info
        self._metric = objective.metric
        self._predictor = PREDICTORS[objective.metric]
        self._nothing = {
            name: np.zeros((0, *(size or 1 for size in spec.shape)), spec.dtype)
            for name, spec in objective.targets.items()
        }
        self.totals = self._of(self._nothing, 0)
        """Number of samples, followed by the predictor's totals."""

    def watched(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Return the same batches; each is added to the totals when it is read.

        Earlier totals are discarded.
        """
        self.totals = self._of(self._nothing, 0)
        return map(self._added, batches)

    def _added(self, batch: Batch) -> Batch:
        if batch.size:
            own = {name: np.asarray(array) for name, array in batch.targets.items()}
            self.totals += self._of(own, batch.size)
        return batch

    def _of(self, targets: Targets, samples: int) -> Totals:
        return np.concatenate([[samples], self._predictor.totals(targets, self._info)])

    def measured(self) -> BaselineMeasured:
        """Return the result from the totals, after all batches were evaluated.

        Raises:
            DatasetError: the batches did not contain all validation samples.
        """
        samples, wanted = round(float(self.totals[0])), self._info.validation_samples
        if samples != wanted:
            raise DatasetError(f"an evaluation had {samples} of {wanted} validation samples")
        sums = self._predictor.sums(self.totals[1:])
        return BaselineMeasured(metric=self._metric, sums=sums, samples=samples)


def has_baseline(objective: Objective) -> bool:
    """Return whether the objective's metric has a trivial predictor."""
    return objective.metric in PREDICTORS
