"""What a dataset is to the trainer: labelled samples in batches, in a reproducible order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from aiperf_hpc.trial import DatasetInfo


class Batch(NamedTuple):
    """Some samples, ready for an engine.

    ``inputs`` is float32 (samples, \\*sample_shape), normalised; ``labels`` is int32 (samples,).
    Both are numpy arrays, or tensors of the framework whose own pipeline made them.
    """

    inputs: Any
    labels: Any

    @property
    def size(self) -> int:
        """The number of samples."""
        return int(self.labels.shape[0])


class Dataset(Protocol):
    """A training set and a validation set."""

    @property
    def info(self) -> DatasetInfo: ...

    def train(self, epoch: int, batch_size: int, seed: int) -> Iterator[Batch]:
        """Yield every training sample exactly once; the last batch may be smaller.

        The order and the augmentation depend on ``seed`` and ``epoch`` alone.
        """
        ...

    def validation(self, batch_size: int) -> Iterator[Batch]:
        """Yield every validation sample exactly once, in one fixed order, not augmented."""
        ...
