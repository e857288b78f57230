"""What a dataset is to the trainer: labelled samples in batches, in a reproducible order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.trial import DatasetInfo


class Batch(NamedTuple):
    """Some samples, ready for an engine.

    ``inputs`` is float32 (samples, \\*sample_shape), normalised; ``labels`` is int32 (samples,).
    Both are numpy arrays, or tensors of the framework whose own pipeline made them.
    """

    inputs: Any
    labels: Any
    of: int | None = None
    """How many samples the whole batch has, of which this is one rank's part."""

    @property
    def size(self) -> int:
        """The number of samples."""
        return int(self.labels.shape[0])

    @property
    def whole(self) -> int:
        """The number of samples that all ranks together have in this batch."""
        return self.size if self.of is None else self.of


class Part(NamedTuple):
    """One rank's part of every batch."""

    rank: int = 0
    ranks: int = 1

    def bounds(self, samples: int) -> tuple[int, int]:
        """Return the first of this rank's samples in a batch of so many, and the one after.

        The first ranks have one more when they do not divide evenly; so no rank ever has more
        of a smaller batch than of a larger one.
        """
        each, left = divmod(samples, self.ranks)
        first = self.rank * each + min(self.rank, left)
        return first, first + each + (self.rank < left)

    def of(self, batch: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return this rank's part of the samples of a batch."""
        first, last = self.bounds(len(batch))
        return batch[first:last]


WHOLE = Part()


class Dataset(Protocol):
    """A training set and a validation set."""

    @property
    def info(self) -> DatasetInfo: ...

    def train(self, epoch: int, batch_size: int, seed: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every training sample exactly once; the last batch may be smaller.

        The order and the augmentation depend on ``seed`` and ``epoch`` alone. Of each batch of
        ``batch_size`` samples a rank is given its part; a part without a sample is left out.
        """
        ...

    def validation(self, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every validation sample exactly once, in one fixed order, not augmented.

        Of each batch a rank is given its part, as in ``train``.
        """
        ...
