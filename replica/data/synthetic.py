"""Synthetic labeled images that can be learned: any size and number, no files.

Each class has a fixed pattern of 4x4 colored tiles; a sample is the mean of its class's pattern and
noise. The patterns are coarse because networks pool over the whole image. Samples are generated
when they are read, so that a set of any size needs no memory. With ``dataset.decoded_cache_gib``
they are generated once and kept in memory as bytes; reading these is faster than training on any
accelerator.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data import generated, rng
from aiperf_hpc.replica.data.arrays import Bytes, Normalization
from aiperf_hpc.replica.data.base import Batch, Pixels, labelled_images
from aiperf_hpc.replica.data.generated import TRAINING, VALIDATION, GeneratedDataset, image_info
from aiperf_hpc.replica.data.rng import Purpose

CHANNELS = 3
TILES = 4
FORMULA = 1
"""Version of the formula, part of the SHA-256."""

NORMALIZATION = Normalization(mean=(127.25,) * CHANNELS, std=(52.26,) * CHANNELS)
"""Mean and standard deviation of floor((a + b) / 2) for a and b uniform over 0 ... 255: 127.25 and
sqrt((2 * (256**2 - 1) / 12 + 1 / 4) / 4) = 52.26."""

SCALING = NORMALIZATION.scaling
_TOGETHER = 64
"""Number of images that a thread generates at a time."""


def load(config: DatasetConfig, cores: int) -> GeneratedDataset:
    """Return the synthetic dataset of the configured image size, classes and numbers of samples.

    Sample i of a set has the class i mod classes.

    Raises:
        DatasetError: ``dataset.decoded_cache_gib`` is too small for all samples.
    """
    patterns = make_patterns(config.classes)
    info = image_info(config, content_sha256(config, patterns))
    in_memory = _ImagesInMemory(config, patterns, cores) if config.decoded_cache_gib else None

    def make(part: int, chosen: NDArray[np.intp]) -> Batch:
        labels = (chosen % config.classes).astype(np.int32)
        if in_memory is not None:
            return labelled_images(Pixels(in_memory.read(part, chosen), SCALING), labels)
        images = make_images(patterns, config.image_size, part, chosen)
        return labelled_images(NORMALIZATION.apply(images), labels)

    return GeneratedDataset(info, make)


class _ImagesInMemory:
    """The images of both sets as bytes; a set is generated when its first image is read."""

    def __init__(self, config: DatasetConfig, patterns: Bytes, cores: int) -> None:
        self._size, self._patterns, self._cores = config.image_size, patterns, cores
        self._samples = {TRAINING: config.train_samples, VALIDATION: config.validation_samples}
        needed = sum(self._samples.values()) * config.image_size**2 * CHANNELS
        if needed > config.decoded_cache_gib * 2**30:
            raise DatasetError(
                f"dataset.decoded_cache_gib {config.decoded_cache_gib:g} is too small: all images "
                f"of dataset 'synthetic' need {needed / 2**30:.2f}; raise it, or leave it out"
            )
        self._images: dict[int, Bytes] = {}
        self._making = Lock()

    def read(self, part: int, chosen: NDArray[np.intp]) -> Bytes:
        """Return samples of one part, uint8 (samples, size, size, 3)."""
        with self._making:
            if part not in self._images:
                self._images[part] = self._made(part)
        return self._images[part][chosen]

    def _made(self, part: int) -> Bytes:
        every = np.arange(self._samples[part])
        images = np.empty((len(every), self._size, self._size, CHANNELS), np.uint8)

        def fill(start: int) -> None:
            some = every[start : start + _TOGETHER]
            images[some] = make_images(self._patterns, self._size, part, some)

        with ThreadPoolExecutor(self._cores) as threads:
            list(threads.map(fill, range(0, len(every), _TOGETHER)))
        return images


def content_sha256(config: DatasetConfig, patterns: Bytes) -> str:
    """Return the SHA-256 of the inputs that determine all samples.

    It covers the formula's version, size, classes and numbers of samples (as ASCII decimals, each
    followed by a newline), the patterns, and the first 64 training samples. All samples may exceed
    the memory of any machine.
    """
    size = config.image_size

    def arrays(sample: int) -> Sequence[Bytes]:
        image = make_images(patterns, size, TRAINING, np.array([sample]))
        return (image,) if sample else (patterns, image)  # The patterns precede the first image.

    numbers = (FORMULA, size, config.classes, config.train_samples, config.validation_samples)
    return generated.content_sha256(numbers, config.train_samples, arrays)


def make_patterns(classes: int) -> Bytes:
    """Return the classes' patterns, uint8 (classes, 4, 4, 3)."""
    shape = (classes, TILES, TILES, CHANNELS)
    return _random_bytes(int(np.prod(shape)), Purpose.PATTERN).reshape(shape)


def make_images(patterns: Bytes, size: int, part: int, samples: NDArray[np.intp]) -> Bytes:
    """Return samples of one part (0 training, 1 validation), uint8 (samples, size, size, 3)."""
    tile = np.arange(size) * TILES // size
    images = np.empty((len(samples), size, size, CHANNELS), np.uint8)
    for place, sample in enumerate(samples.tolist()):
        pattern = patterns[sample % len(patterns)].astype(np.uint16)[tile][:, tile]
        noise = _random_bytes(pattern.size, Purpose.NOISE, part, sample)
        images[place] = (pattern + noise.reshape(pattern.shape)) >> 1
    return images


def _random_bytes(count: int, *key: int) -> Bytes:
    # The explicit byte order gives the same samples on all machines.
    return rng.words(-(-count // 8), *key).astype("<u8").view(np.uint8)[:count]
