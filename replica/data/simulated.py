"""Empty samples of any shape and number, for engines that do not read samples.

The time of a simulated engine depends only on the batch size. Arrays with zero strides provide
batches of the real shape without using memory or time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data.base import WHOLE, Batch, Part, labelled_images
from aiperf_hpc.replica.data.generated import content_sha256, image_info
from aiperf_hpc.trial import DatasetInfo

CHANNELS = 3


@dataclass(frozen=True, slots=True)
class SimulatedDataset:
    """A dataset whose samples are all zero, with label 0."""

    info: DatasetInfo

    def train(self, epoch: int, batch_size: int, seed: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every training sample once; all are equal."""
        return self._batches(self.info.train_samples, batch_size, part)

    def validation(self, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every validation sample once."""
        return self._batches(self.info.validation_samples, batch_size, part)

    def _batches(self, samples: int, batch_size: int, part: Part) -> Iterator[Batch]:
        for start in range(0, samples, batch_size):
            first, last = part.bounds(min(batch_size, samples - start))
            if first < last:
                yield _zeros((last - first, *self.info.input_shape("image")))


@lru_cache(maxsize=64)
def _zeros(shape: tuple[int, ...]) -> Batch:
    labels = np.broadcast_to(np.int32(0), shape[0])
    return labelled_images(np.broadcast_to(np.float32(0.0), shape), labels)


def load(config: DatasetConfig, cores: int) -> SimulatedDataset:
    """Return a dataset of the configured image size, classes and numbers of samples."""
    shape = (config.image_size, config.image_size, CHANNELS)
    numbers = (*shape, config.classes, config.train_samples, config.validation_samples)
    sha256 = content_sha256(("zeros", *numbers), 0, lambda _: ())
    return SimulatedDataset(image_info(config, sha256))
