"""What a network is worth that has learnt nothing: a trivial predictor on the same samples.

A trivial predictor reads no input, so that what it reaches follows from the targets alone. Those
of the validation samples are looked at while a network is evaluated on them, each rank at its own
part: nothing is read twice. Each measure names its predictor (``Measure.baseline``), and has a row
here that says what it adds up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.objective import Objective
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.run.records import BaselineMeasured
from aiperf_hpc.trial import DatasetInfo

MOST_CLASSES = 1000
"""Classes of boxes: more than any dataset has that is known here."""

Targets = Mapping[str, NDArray[Any]]
"""A batch's, by the objective's names: each (samples, \\*shape)."""
Totals = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Predictor:
    """A predictor that reads no input."""

    totals: Callable[[Targets, DatasetInfo], Totals]
    """What is added up over batches and ranks, of a batch's targets; of no samples, zeros."""
    sums: Callable[[Totals], dict[str, float]]
    """The measure's sums, of the totals of all samples."""


def _of_each_class(targets: Targets, info: DatasetInfo) -> Totals:
    """Return how many samples have each class, (classes,)."""
    classes = _classes(info)
    counts = np.bincount(targets["label"], minlength=classes)
    if len(counts) > classes:
        raise DatasetError(f"a label of {len(counts) - 1}, and classes up to {classes - 1}")
    return counts.astype(np.float64)


def _from_zeros(targets: Targets, _: DatasetInfo) -> Totals:
    """Return the sum of all distances from zero, and the number of values."""
    values = np.abs(targets["values"], dtype=np.float64)
    return np.array([values.sum(), values.size], np.float64)


def _of_background(targets: Targets, info: DatasetInfo) -> Totals:
    """Return the sum over samples of what class 0 everywhere is worth, (1,).

    Class 0 is found in all pixels, and there in some; another is right where it is not there.
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
    """Return how many boxes each class has, of as many classes as there may be."""
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
"""The trivial predictors, by the names of measures."""


class Baseline(Protocol):
    """Measures, over one evaluation, what a trivial predictor reaches."""

    def watched(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches of an evaluation that is to be measured; what was measured before is
        forgotten."""
        ...

    def measured(self) -> BaselineMeasured:
        """Return what was found, once all batches were evaluated.

        Raises:
            DatasetError: they were not all validation samples.
        """
        ...


class Tally:
    """The baseline of one rank's part of the samples."""

    def __init__(self, objective: Objective, info: DatasetInfo) -> None:
        self._info = info
        self._measure = objective.measure
        self._predictor = PREDICTORS[objective.measure]
        self._nothing = {
            name: np.zeros((0, *(size or 1 for size in spec.shape)), spec.dtype)
            for name, spec in objective.targets.items()
        }
        self.totals = self._of(self._nothing, 0)
        """The number of samples, and what the predictor adds up."""

    def watched(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Return the same batches; each is added when it is taken."""
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
        """Return what the totals come to."""
        samples, wanted = round(float(self.totals[0])), self._info.validation_samples
        if samples != wanted:
            raise DatasetError(f"an evaluation had {samples} of {wanted} validation samples")
        sums = self._predictor.sums(self.totals[1:])
        return BaselineMeasured(measure=self._measure, sums=sums, samples=samples)


def has_baseline(objective: Objective) -> bool:
    """Return whether there is a trivial predictor for what a network is trained for."""
    return objective.measure in PREDICTORS
