"""What a dataset is to the trainer: samples in batches, in a reproducible order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from aiperf_hpc.trial import DatasetInfo

Floats = NDArray[np.float32]


class Scaling(NamedTuple):
    """What real numbers bytes stand for: byte * scale + shift, each channel its own."""

    scale: tuple[float, ...]
    shift: tuple[float, ...]

    def line(self, width: int) -> tuple[Floats, Floats]:
        """Return factors and addends of a line of so many pixels, (width * channels,).

        A whole line at once, because arithmetic along an axis of three channels is slow.
        """
        return _line(self, width)


@lru_cache(maxsize=16)
def _line(scaling: Scaling, width: int) -> tuple[Floats, Floats]:
    scale, shift = (np.asarray(values, np.float32) for values in scaling)
    return np.tile(scale, width), np.tile(shift, width)


@dataclass(frozen=True, slots=True)
class Pixels:
    """Real numbers as the bytes that they are made of, a quarter of what they are themselves.

    Engines bring the bytes to their device and make the numbers there: as float32, by one
    multiplication and one addition that each round, so that they are the same bits everywhere.
    numpy takes this as the array of the numbers.
    """

    bytes: NDArray[np.uint8]
    """(samples, \\*places, width, channels)."""
    scaling: Scaling

    @property
    def shape(self) -> tuple[int, ...]:
        return self.bytes.shape

    def __array__(self, dtype: DTypeLike = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the numbers, float32 unless another type is asked for."""
        del copy  # It is always one.
        *samples, width, channels = self.bytes.shape
        scale, shift = self.scaling.line(width)
        floats = self.bytes.reshape(*samples, width * channels) * scale
        floats += shift
        return floats.reshape(self.shape).astype(dtype or np.float32, copy=False)


class Batch(NamedTuple):
    """Some samples, ready for an engine: named arrays, each (samples, \\*shape).

    Names, shapes and types are those of the dataset's ``DatasetInfo``. The arrays are numpy's, or
    tensors of the framework whose own pipeline made them; inputs may be ``Pixels``, which stand for
    float32.
    """

    inputs: Mapping[str, Any]
    """What the network reads, by the names of its input nodes."""
    targets: Mapping[str, Any]
    """What the loss compares its output with, by the objective's names."""
    of: int | None = None
    """The number of samples in the whole batch, of which this is one rank's part."""

    @property
    def size(self) -> int:
        """The number of samples."""
        return next((int(array.shape[0]) for array in self.targets.values()), 0)

    @property
    def whole(self) -> int:
        """The number of samples that all ranks together have in this batch."""
        return self.size if self.of is None else self.of


def labelled_images(images: Any, labels: Any, of: int | None = None) -> Batch:  # noqa: ANN401
    """Return a batch of images that each have one class.

    Args:
        images: float32 (samples, height, width, channels), normalised, of any framework, or
            ``Pixels``.
        labels: int32 (samples,).
        of: the samples of the whole batch, where this is one rank's part.
    """
    return Batch({"image": images}, {"label": labels}, of)


def empty_batch(info: DatasetInfo, samples: int) -> Batch:
    """Return a batch of a dataset with room for a number of samples, all of one shape."""
    arrays = {
        name: np.empty((samples, *(size or 1 for size in spec.shape)), spec.dtype)
        for name, spec in (info.inputs | info.targets).items()
    }
    return Batch({n: arrays[n] for n in info.inputs}, {n: arrays[n] for n in info.targets})


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
