"""ImageNet (ILSVRC 2012, or any folder in its layout) as TFRecord shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.dataset_manifest import load_dataset_manifest
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.base import WHOLE, Batch, Part
from aiperf_hpc.replica.data.imagenet.prepare import prepare
from aiperf_hpc.replica.data.imagenet.shards import (
    ShardIndex,
    Sizes,
    load_index,
    load_sizes,
    verify_shards,
)
from aiperf_hpc.trial import DatasetInfo

__all__ = ["ImageNetDataset", "load", "prepare", "verify"]


@dataclass(frozen=True, slots=True)
class ImageNetDataset:
    """The shards of a prepared folder.

    ``sizes`` are the bytes of each record, of training and validation. ``parallel`` is the number
    of images decoded at once; no sample depends on it. With ``tensorflow`` tf.data reads, and is
    imported with the first sample; else Pillow does.
    """

    info: DatasetInfo
    folder: Path
    index: ShardIndex
    sizes: tuple[Sizes, Sizes]
    augment: bool
    parallel: int
    tensorflow: bool

    def train(self, epoch: int, batch_size: int, seed: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every training sample once, in the order and augmentation of (seed, epoch).

        Raises:
            DatasetError: while iterating, when a shard turns out to be damaged.
        """
        return self._reader().train(self, epoch, batch_size, seed, part)

    def validation(self, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every validation sample once, in the shards' order. Raises as ``train`` does."""
        return self._reader().validation(self, batch_size, part)

    def _reader(self) -> _Reader:
        if self.tensorflow:
            from aiperf_hpc.replica.data.imagenet import tensorflow_reader

            return tensorflow_reader
        from aiperf_hpc.replica.data.imagenet import pillow_reader

        return pillow_reader


class _Reader(Protocol):
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


def load(config: DatasetConfig, cores: int, engine: str) -> ImageNetDataset:
    """Open a prepared folder; each shard's size and first bytes are checked.

    The engine ``tensorflow`` reads it by tf.data; what every other one gets is made by Pillow.

    Raises:
        DatasetError: no folder is given, it was not prepared, or a shard is missing, truncated
            or not the one that was prepared.
    """
    if config.path is None:
        raise DatasetError("dataset 'imagenet': no folder is given; pass --set dataset.path=FOLDER")
    info, index = _open(config.path)
    verify_shards(config.path, (*index.train, *index.validation), max(1, cores), whole=False)
    size = (config.image_size, config.image_size, 3)
    return ImageNetDataset(
        info.model_copy(update={"sample_shape": size}),
        config.path,
        index,
        load_sizes(config.path, index),
        config.augment,
        max(1, min(config.parallel_transforms, cores)),
        engine == "tensorflow",
    )


def verify(folder: Path, cores: int) -> None:
    """Read every byte of a prepared folder's shards and compare their SHA-256.

    Raises:
        DatasetError: naming the first shard that is not the one that was prepared.
    """
    _, index = _open(folder)
    verify_shards(folder, (*index.train, *index.validation), max(1, cores), whole=True)


def _open(folder: Path) -> tuple[DatasetInfo, ShardIndex]:
    info = load_dataset_manifest(folder, "imagenet")
    index = load_index(folder)
    counts = [sum(s.samples for s in part) for part in (index.train, index.validation)]
    if index.dataset_sha256 != info.sha256 or counts != [
        info.train_samples,
        info.validation_samples,
    ]:
        raise DatasetError(
            f"dataset 'imagenet': dataset.json and shards.json of {folder} are of two "
            "preparations; prepare it again"
        )
    return info, index
