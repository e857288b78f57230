"""ImageNet as a dataset, whichever of its readers reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aiperf_hpc.replica.data.base import WHOLE, Batch, Part
from aiperf_hpc.replica.data.imagenet.decoded_images import DecodedImages
from aiperf_hpc.replica.data.shards import ShardIndex, Sizes
from aiperf_hpc.trial import DatasetInfo


@dataclass(frozen=True, slots=True)
class ImageNetDataset:
    """The shards of a prepared folder.

    ``sizes`` are the bytes of each record, of training and validation. ``parallel`` is the number
    of images decoded at once; no sample depends on it. ``reader`` returns what reads the shards; it
    is called when samples are asked for, and imports no framework before. ``decoded`` are images
    that the reader of Pillow keeps, ``least_crop`` the least share of an image that a training crop
    covers.
    """

    info: DatasetInfo
    folder: Path
    index: ShardIndex
    sizes: tuple[Sizes, Sizes]
    augment: bool
    parallel: int
    reader: Callable[[], Reader]
    decoded: DecodedImages
    least_crop: float

    def train(self, epoch: int, batch_size: int, seed: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every training sample once, in the order and augmentation of (seed, epoch).

        Raises:
            DatasetError: while iterating, when a shard turns out to be damaged.
        """
        return self.reader().train(self, epoch, batch_size, seed, part)

    def validation(self, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every validation sample once, in the shards' order. Raises as ``train`` does."""
        return self.reader().validation(self, batch_size, part)


class Reader(Protocol):
    """What a module that reads the shards has: see ``Dataset``."""

    def train(
        self,
        dataset: ImageNetDataset,
        epoch: int,
        batch_size: int,
        seed: int,
        part: Part,
    ) -> Iterator[Batch]: ...

    def validation(
        self, dataset: ImageNetDataset, batch_size: int, part: Part
    ) -> Iterator[Batch]: ...
