"""Synthetic datasets generated when they are read: any number of samples, no files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data import rng
from aiperf_hpc.replica.data.base import WHOLE, Batch, Part, prefetched, rank_parts
from aiperf_hpc.replica.data.rng import Purpose
from aiperf_hpc.trial import DatasetInfo, TensorSpec

TRAINING, VALIDATION = 0, 1
"""The two sets of samples, part of the key of a sample's random numbers."""
CACHE_BYTES = 1 << 30
"""Maximum size of the samples cached in memory, in bytes."""
TARGETS = 2
"""Number of targets per sample that ``draw_targets`` samples."""
_DIGEST_SAMPLES = 64

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GeneratedDataset:
    """A dataset that generates samples by their numbers."""

    info: DatasetInfo
    make: Callable[[int, NDArray[np.intp]], Batch]
    """Returns a batch of samples from ``TRAINING`` or ``VALIDATION`` and the samples' numbers."""

    def train(self, epoch: int, batch_size: int, seed: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every training sample once, in the order of (seed, epoch)."""
        order = rng.permutation(self.info.train_samples, Purpose.ORDER, seed, epoch)
        return self._batches(TRAINING, order, batch_size, part)

    def validation(self, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every validation sample once, in the order of their numbers."""
        order = np.arange(self.info.validation_samples)
        return self._batches(VALIDATION, order, batch_size, part)

    def _batches(
        self, samples: int, order: NDArray[np.intp], batch_size: int, part: Part
    ) -> Iterator[Batch]:
        return prefetched(self.make(samples, own) for own in rank_parts(order, batch_size, part))


class SampleCache(Generic[T]):
    """Cache of samples in memory, as many as fit; all others are regenerated in each epoch."""

    def __init__(self, make: Callable[[int, int], T], sample_bytes: int) -> None:
        self._make = make
        self._most = CACHE_BYTES // sample_bytes
        self._samples: dict[tuple[int, int], T] = {}

    def get(self, part: int, sample: int) -> T:
        """Return a sample of a part by its number."""
        found = self._samples.get((part, sample))
        if found is None:
            found = self._make(part, sample)
            if len(self._samples) < self._most:
                self._samples[part, sample] = found
        return found


def content_sha256(
    facts: Iterable[object],
    train_samples: int,
    arrays_of: Callable[[int], Iterable[NDArray[Any]]],
) -> str:
    """Return the SHA-256 of all inputs that determine a dataset's samples.

    Samples that are computed from random words by a Fourier transform are not hashed, because their
    last bits differ between machines; the words are.

    Args:
        facts: version and settings of the formula, each hashed as text with a final newline.
        train_samples: number of training samples; the first 64 of them are covered.
        arrays_of: returns the arrays to hash for a training sample, little-endian: its random words
            or, if all machines compute the same bits, the sample.
    """
    digest = hashlib.sha256("".join(f"{fact}\n" for fact in facts).encode())
    for sample in range(min(_DIGEST_SAMPLES, train_samples)):
        for array in arrays_of(sample):
            digest.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    return digest.hexdigest()


def cube_dataset(
    config: DatasetConfig,
    formula: int,
    channels: int,
    volumes: Callable[[int, NDArray[np.intp]], NDArray[np.float32]],
) -> GeneratedDataset:
    """Return a dataset of fields on cubes that are generated for the targets of ``draw_targets``.

    Its SHA-256 covers the formula's version, the size, the numbers of samples, and the random
    words.

    Args:
        config: settings of the dataset; ``image_size`` is the number of cells per side.
        formula: version of the formula.
        channels: number of channels of a volume.
        volumes: returns the volumes of a part's samples by their numbers.
    """
    size, counts = config.image_size, (config.train_samples, config.validation_samples)
    sha256 = content_sha256(
        (formula, size, *counts),
        config.train_samples,
        lambda each: (target_words(TRAINING, each), noise_words(size**3, TRAINING, each)),
    )
    info = DatasetInfo(
        name=config.name,
        sha256=sha256,
        inputs={"volume": TensorSpec(shape=(size, size, size, channels))},
        targets={"values": TensorSpec(shape=(TARGETS,))},
        train_samples=config.train_samples,
        validation_samples=config.validation_samples,
    )

    def make(part: int, chosen: NDArray[np.intp]) -> Batch:
        targets = np.stack([draw_targets(part, each) for each in chosen.tolist()])
        return Batch({"volume": volumes(part, chosen)}, {"values": targets.astype(np.float32)})

    return GeneratedDataset(info, make)


def image_info(config: DatasetConfig, sha256: str) -> DatasetInfo:
    """Return the description of square color images of the configured size, classes and numbers."""
    return DatasetInfo.of_labelled_images(
        name=config.name,
        sha256=sha256,
        classes=config.classes,
        shape=(config.image_size, config.image_size, 3),
        train_samples=config.train_samples,
        validation_samples=config.validation_samples,
    )


def draw_targets(part: int, sample: int) -> NDArray[np.float64]:
    """Return the sampled targets of a sample, (2,), uniform in [-1, 1)."""
    return target_words(part, sample) / 2.0**63 - 1.0


def target_words(part: int, sample: int) -> NDArray[np.uint64]:
    """Return the random words of a sample's targets."""
    return rng.words(TARGETS, Purpose.TARGET, part, sample)


def noise_words(cells: int, part: int, sample: int) -> NDArray[np.uint32]:
    """Return the random words of a sample's noise."""
    return rng.halves(cells, Purpose.FIELD, part, sample)


def mode_counts(size: int) -> NDArray[np.float64]:
    """Return the multiplicity in the full transform of each mode of a real Fourier transform."""
    counts = np.full(size // 2 + 1, 2.0)
    counts[0] = 1.0
    if size % 2 == 0:
        counts[-1] = 1.0
    return counts


@lru_cache(maxsize=4)
def cube_modes(size: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return the squared wavenumbers of a cube's real transform, and their ``mode_counts``."""
    whole = np.rint(np.fft.fftfreq(size, 1.0 / size)).astype(np.intp)
    half = np.arange(size // 2 + 1)
    squares = whole[:, None, None] ** 2 + whole[None, :, None] ** 2 + half[None, None, :] ** 2
    return squares, np.broadcast_to(mode_counts(size), squares.shape)
