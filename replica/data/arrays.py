"""Datasets of small images that fit in memory as bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.replica.data import rng
from aiperf_hpc.replica.data.base import (
    WHOLE,
    Batch,
    Floats,
    Part,
    PixelScaling,
    labelled_images,
    prefetched,
    rank_parts,
)
from aiperf_hpc.replica.data.rng import Purpose
from aiperf_hpc.trial import DatasetInfo

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Samples:
    """Labeled images: ``images`` is uint8 (samples, height, width, channels), ``labels``
    uint8 (samples,)."""

    images: Bytes
    labels: Bytes


@dataclass(frozen=True, slots=True)
class Normalization:
    """Mean and standard deviation of the training pixels per channel, in raw pixel units."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def apply(self, images: Bytes) -> Floats:
        """Return (images - mean) / std in float32, in the shape of ``images``."""
        *samples, width, channels = images.shape
        # One line of pixels at a time: numpy is slow along an axis of three channels.
        floats = images.reshape(*samples, width * channels).astype(np.float32)
        floats -= np.tile(np.asarray(self.mean, np.float32), width)
        floats /= np.tile(np.asarray(self.std, np.float32), width)
        return floats.reshape(images.shape)

    @property
    def scaling(self) -> PixelScaling:
        """The normalization as a multiplication and an addition, for execution on a device."""
        factors = tuple(1.0 / deviation for deviation in self.std)
        shifts = (-mean / deviation for mean, deviation in zip(self.mean, self.std, strict=True))
        return PixelScaling(factors, tuple(shifts))


@dataclass(frozen=True, slots=True)
class Augmentation:
    """Pad with black by ``pad`` pixels per side, crop back at random, mirror half of the images.

    The padding is black before the normalization, as in a camera image.
    """

    pad: int
    mirror: bool

    def draw(self, samples: int, seed: int, epoch: int) -> Moves:
        """Sample the crops and mirrorings of all training samples in one epoch."""
        span = 2 * self.pad + 1
        mirrored = rng.integers(samples, 2, Purpose.MIRROR, seed, epoch) == 1
        return Moves(
            rng.integers(samples, span, Purpose.DOWN, seed, epoch),
            rng.integers(samples, span, Purpose.RIGHT, seed, epoch),
            mirrored if self.mirror else np.zeros(samples, np.bool_),
        )

    def apply(self, images: Bytes, moves: Moves) -> Bytes:
        """Return the augmented images, in the same shape: (samples, height, width, channels).

        One indexing operation gathers all of them from the padded images; for a mirror image, the
        column indices are reversed.
        """
        count, height, width, _ = images.shape
        sides = (self.pad, self.pad)
        padded = np.pad(images, ((0, 0), sides, sides, (0, 0)))
        columns = np.arange(width)
        across = np.where(moves.mirrored[:, None], columns[::-1], columns)
        rows = moves.down[:, None] + np.arange(height)
        columns = moves.right[:, None] + across
        places = np.arange(count)[:, None, None]
        moved: Bytes = padded[places, rows[:, :, None], columns[:, None, :]]
        return moved


@dataclass(frozen=True, slots=True)
class Moves:
    """Crops and mirrorings of several samples: three arrays of equal length.

    ``down`` and ``right`` are the crop's corner in the padded image, in pixels from its top left.
    """

    down: NDArray[np.intp]
    right: NDArray[np.intp]
    mirrored: NDArray[np.bool_]

    def of(self, chosen: NDArray[np.intp]) -> Moves:
        """Return the crops and mirrorings of the chosen samples."""
        return Moves(self.down[chosen], self.right[chosen], self.mirrored[chosen])


@dataclass(frozen=True, slots=True)
class ArrayDataset:
    """A dataset stored in memory as bytes and normalized batch by batch.

    The augmentation of a sample in an epoch depends on the sample and not on its place in the
    order, so that it is the same for every batch size.
    """

    info: DatasetInfo
    training: Samples
    held_out: Samples
    normalization: Normalization
    augmentation: Augmentation | None

    def train(self, epoch: int, batch_size: int, seed: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every training sample once; (seed, epoch) determine order and augmentation."""
        return prefetched(self._train(epoch, batch_size, seed, part))

    def validation(self, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every validation sample once, in the stored order."""
        return prefetched(self._validation(batch_size, part))

    def _train(self, epoch: int, batch_size: int, seed: int, part: Part) -> Iterator[Batch]:
        samples = len(self.training.labels)
        order = rng.permutation(samples, Purpose.ORDER, seed, epoch)
        moves = self.augmentation.draw(samples, seed, epoch) if self.augmentation else None
        for chosen in rank_parts(order, batch_size, part):
            images = self.training.images[chosen]
            if self.augmentation and moves:
                images = self.augmentation.apply(images, moves.of(chosen))
            yield self._batch(images, self.training.labels[chosen])

    def _validation(self, batch_size: int, part: Part) -> Iterator[Batch]:
        for chosen in rank_parts(np.arange(len(self.held_out.labels)), batch_size, part):
            own = slice(chosen[0], chosen[-1] + 1)
            yield self._batch(self.held_out.images[own], self.held_out.labels[own])

    def _batch(self, images: Bytes, labels: Bytes) -> Batch:
        return labelled_images(self.normalization.apply(images), labels.astype(np.int32))
