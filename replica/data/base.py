"""The trainer's interface to datasets: batches in a reproducible order, prefetched by threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from aiperf_hpc.trial import DatasetInfo

Floats = NDArray[np.float32]


class PixelScaling(NamedTuple):
    """Conversion of bytes to real numbers: byte * scale + shift, separately for each channel."""

    scale: tuple[float, ...]
    shift: tuple[float, ...]

    def line(self, width: int) -> tuple[Floats, Floats]:
        """Return factors and addends of a line of ``width`` pixels, (width * channels,).

        They cover a whole line because arithmetic along an axis of three channels is slow.
        """
        return _line(self, width)


@lru_cache(maxsize=16)
def _line(scaling: PixelScaling, width: int) -> tuple[Floats, Floats]:
    scale, shift = (np.asarray(values, np.float32) for values in scaling)
    return np.tile(scale, width), np.tile(shift, width)


@dataclass(frozen=True, slots=True)
class Pixels:
    """Real numbers stored as the bytes that they are computed from, a quarter of their size.

    Engines copy the bytes to their device and compute the numbers there in float32, by one
    multiplication and one addition with separate rounding, so that results are bitwise equal on
    all devices. numpy converts an instance to the array of the numbers.
    """

    bytes: NDArray[np.uint8]
    """Bytes of shape (samples, \\*places, width, channels)."""
    scaling: PixelScaling

    @property
    def shape(self) -> tuple[int, ...]:
        return self.bytes.shape

    def __array__(self, dtype: DTypeLike = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the numbers as ``dtype``, by default float32."""
        # The result is always a copy.
        *samples, width, channels = self.bytes.shape
        scale, shift = self.scaling.line(width)
        floats = self.bytes.reshape(*samples, width * channels) * scale
        floats += shift
        return floats.reshape(self.shape).astype(dtype or np.float32, copy=False)


class Batch(NamedTuple):
    """Samples ready for an engine: named arrays, each (samples, \\*shape).

    The dataset's ``DatasetInfo`` defines names, shapes and types. The arrays are numpy arrays or
    tensors of the framework whose pipeline created them; inputs may be ``Pixels``, which represent
    float32.
    """

    inputs: Mapping[str, Any]
    """Inputs of the network by the names of its input nodes."""
    targets: Mapping[str, Any]
    """Targets of the loss by the objective's names."""
    of: int | None = None
    """Number of samples in the whole batch if this is one rank's part of it."""

    @property
    def size(self) -> int:
        """Number of samples."""
        return next((int(array.shape[0]) for array in self.targets.values()), 0)

    @property
    def whole(self) -> int:
        """Number of samples in this batch over all ranks."""
        return self.size if self.of is None else self.of


def labelled_images(images: Any, labels: Any, of: int | None = None) -> Batch:  # noqa: ANN401
    """Return a batch of images with one class each.

    Args:
        images: normalized images, float32 (samples, height, width, channels) of any framework, or
            ``Pixels``.
        labels: classes, int32 (samples,).
        of: number of samples in the whole batch if this is one rank's part of it.
    """
    return Batch({"image": images}, {"label": labels}, of)


def empty_batch(info: DatasetInfo, samples: int) -> Batch:
    """Return an uninitialized batch for a number of samples of equal shape."""
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
        """Return the first and one past the last of this rank's samples in a batch of ``samples``.

        If they do not divide evenly, the first ranks have one more. No rank has more samples of a
        smaller batch than of a larger one.
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

        The order and the augmentation depend only on ``seed`` and ``epoch``. A rank receives its
        part of each batch of ``batch_size`` samples; empty parts are omitted.
        """

    def validation(self, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every validation sample exactly once, in a fixed order and without augmentation.

        A rank receives its part of each batch, as in ``train``.
        """


DEPTH = 2
"""Number of prefetched batches."""
T = TypeVar("T")


def rank_parts(order: NDArray[np.intp], batch_size: int, part: Part) -> Iterator[NDArray[np.intp]]:
    """Yield a rank's part of each batch of samples in an order; empty parts are omitted."""
    for start in range(0, len(order), batch_size):
        own = part.of(order[start : start + batch_size])
        if len(own):
            yield own


def prefetched(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the same batches in the same order, read by a thread that ends with this iterator.

    An exception is raised in place of the batch that caused it.
    """
    with ThreadPoolExecutor(1, "batches") as thread:
        pending = deque(thread.submit(next, batches, None) for _ in range(DEPTH))
        while (batch := pending.popleft().result()) is not None:
            pending.append(thread.submit(next, batches, None))
            yield batch


def filled(
    parts: Iterable[Sequence[T]],
    empty: Callable[[int], Batch],
    fill: Callable[[T, Batch, int], None],
    threads: int,
) -> Iterator[Batch]:
    """Yield batches whose samples are read by threads, with enough prefetched to use all threads.

    Args:
        parts: sample numbers of each batch.
        empty: returns an uninitialized batch for a number of samples.
        fill: writes a sample into its place in a batch.
        threads: number of samples read concurrently; no sample depends on it.
    """
    pending: deque[tuple[Batch, list[Future[None]]]] = deque()
    with ThreadPoolExecutor(threads, "samples") as pool:
        try:
            for samples in parts:
                batch = empty(len(samples))
                work = [pool.submit(fill, each, batch, at) for at, each in enumerate(samples)]
                pending.append((batch, work))
                if len(pending) > DEPTH + threads // len(samples):
                    yield _finished(*pending.popleft())
            while pending:
                yield _finished(*pending.popleft())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _finished(batch: Batch, work: list[Future[None]]) -> Batch:
    for sample in work:
        sample.result()
    return batch
