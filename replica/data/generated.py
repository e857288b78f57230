"""Datasets out of a formula, whose samples are made when they are read: any number, no files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.replica.data import rng
from aiperf_hpc.replica.data.base import WHOLE, Batch, Part
from aiperf_hpc.replica.data.prefetch import prefetched
from aiperf_hpc.replica.data.rng import Purpose
from aiperf_hpc.trial import DatasetInfo

TRAINING, VALIDATION = 0, 1
"""The two sets of samples, as part of the key that a sample's random numbers are drawn by."""


@dataclass(frozen=True, slots=True)
class GeneratedDataset:
    """Samples by their numbers."""

    info: DatasetInfo
    make: Callable[[int, NDArray[np.intp]], Batch]
    """Takes ``TRAINING`` or ``VALIDATION`` and samples' numbers; returns them as a batch."""

    def train(self, epoch: int, batch_size: int, seed: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every training sample once, in the order of (seed, epoch)."""
        order = rng.permutation(self.info.train_samples, Purpose.ORDER, seed, epoch)
        return prefetched(self._batches(TRAINING, order, batch_size, part))

    def validation(self, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every validation sample once, in its own order."""
        order = np.arange(self.info.validation_samples)
        return prefetched(self._batches(VALIDATION, order, batch_size, part))

    def _batches(
        self, samples: int, order: NDArray[np.intp], batch_size: int, part: Part
    ) -> Iterator[Batch]:
        for start in range(0, len(order), batch_size):
            chosen = part.of(order[start : start + batch_size])
            if len(chosen):
                yield self.make(samples, chosen)
