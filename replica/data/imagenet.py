"""ImageNet (ILSVRC 2012, or any folder in its layout) as TFRecord shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.dataset_manifest import load_dataset_manifest
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.base import WHOLE, Batch, Part
from aiperf_hpc.replica.data.imagenet_prepare import prepare
from aiperf_hpc.replica.data.imagenet_shards import ShardIndex, load_index, verify_shards
from aiperf_hpc.trial import DatasetInfo

__all__ = ["ImageNetDataset", "load", "prepare", "verify"]


@dataclass(frozen=True, slots=True)
class ImageNetDataset:
    """The shards of a prepared folder. TensorFlow is imported when the first sample is read.

    ``parallel`` is the number of images decoded at once; no sample depends on it.
    """

    info: DatasetInfo
    folder: Path
    index: ShardIndex
    augment: bool
    parallel: int

    def train(self, epoch: int, batch_size: int, seed: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every training sample once, in the order and augmentation of (seed, epoch).

        Raises:
            DatasetError: while iterating, when a shard turns out to be damaged.
        """
        from aiperf_hpc.replica.data import imagenet_tf

        return imagenet_tf.train(self, epoch, batch_size, seed, part)

    def validation(self, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every validation sample once, in the shards' order. Raises as ``train`` does."""
        from aiperf_hpc.replica.data import imagenet_tf

        return imagenet_tf.validation(self, batch_size, part)


def load(config: DatasetConfig, cores: int) -> ImageNetDataset:
    """Open a prepared folder; each shard's size and first bytes are checked.

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
        config.augment,
        max(1, min(config.parallel_transforms, cores)),
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
