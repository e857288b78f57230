"""ImageNet as a dataset: opening a prepared folder, for each of its readers."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.datasets import load_archives
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.base import WHOLE, Batch, Part
from aiperf_hpc.replica.data.imagenet.sample_order import resized_side
from aiperf_hpc.replica.data.imagenet.stored_image import SIDE
from aiperf_hpc.replica.data.sharded.dataset import prepared_folder
from aiperf_hpc.replica.data.sharded.index import (
    ShardIndex,
    Sizes,
    load_sizes,
    open_index,
    verify_shards,
)
from aiperf_hpc.trial import DatasetInfo, TensorSpec

if TYPE_CHECKING:
    from PIL import Image

PIXEL_BYTES = 4
"""Memory of a pixel of three colors in Pillow."""


class DecodedImage(NamedTuple):
    """A whole image, in RGB, and its class."""

    image: Image.Image
    label: int


class DecodedImages:
    """Decoded images in memory for later epochs: the first ones, as many as fit.

    None makes room for another. Each is used once in an epoch, so that the least recently used
    image is the one that is needed next.
    """

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes
        self._images: dict[tuple[str, int], DecodedImage] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._images)

    def get(self, shard: str, offset: int) -> DecodedImage | None:
        """Return the image of the record at this byte of a shard, if it was kept."""
        return self._images.get((shard, offset))

    def keep(self, shard: str, offset: int, decoded: DecodedImage) -> None:
        """Keep a copy of an image if there is room for it. Threads may call it."""
        needed = PIXEL_BYTES * decoded.image.width * decoded.image.height
        with self._lock:
            if needed > self._left or (shard, offset) in self._images:
                return
            self._left -= needed
        # A copy: an image that was opened holds the file that it came from.
        self._images[shard, offset] = decoded._replace(image=decoded.image.copy())


@dataclass(frozen=True, slots=True)
class ImageNetDataset:
    """The shards of a prepared folder."""

    info: DatasetInfo
    folder: Path
    index: ShardIndex
    sizes: tuple[Sizes, Sizes]
    """Bytes of each record of training and validation."""
    augment: bool
    parallel: int
    """Number of images that are decoded at once; no sample depends on it."""
    reader: str
    """Name of the module that reads the shards; no framework is imported before that."""
    decoded: DecodedImages
    """Images that Pillow's reader keeps."""
    least_crop: float
    """Least fraction of an image that a training crop covers."""

    def train(self, epoch: int, batch_size: int, seed: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every training sample once, in the order and augmentation of (seed, epoch).

        Raises:
            DatasetError: while iterating, when a shard turns out to be damaged.
        """
        batches: Iterator[Batch] = self._reader.train(self, epoch, batch_size, seed, part)
        return batches

    def validation(self, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every validation sample once, in the shards' order. Raises as ``train`` does."""
        batches: Iterator[Batch] = self._reader.validation(self, batch_size, part)
        return batches

    @property
    def _reader(self) -> Any:  # noqa: ANN401 -- a module
        return importlib.import_module(f"{__package__}.{self.reader}")


def load(config: DatasetConfig, cores: int, engine: str) -> ImageNetDataset:
    """Open a prepared folder; each shard's size and first bytes are checked.

    The engine ``tensorflow`` reads it by tf.data, every other one by Pillow.

    Raises:
        DatasetError: no folder is given, it was not prepared, it stores images in another format
            than the configured one, or a shard is missing, truncated or not the one that was
            prepared.
    """
    folder = prepared_folder(config)
    info, index = open_index(folder, "imagenet")
    _check_format(info, config)
    verify_shards(folder, index.shards, cores, "imagenet", whole=False)
    size = (config.image_size, config.image_size, 3)
    used = {
        "inputs": {"image": TensorSpec(shape=size)},
        "archives": load_archives(folder),
    }
    return ImageNetDataset(
        info.model_copy(update=used),
        folder,
        index,
        load_sizes(folder, index, "imagenet"),
        config.augment,
        max(1, min(config.parallel_transforms, cores)),
        "tensorflow_reader" if engine == "tensorflow" else "pillow_reader",
        DecodedImages(int(config.decoded_gib * 2**30)),
        config.least_crop,
    )


def _check_format(info: DatasetInfo, config: DatasetConfig) -> None:
    """Require that a folder stores images in the configured format, and large enough.

    Raises:
        DatasetError: it does not.
    """
    if info.stored != config.stored:
        raise DatasetError(
            f"dataset 'imagenet': the images in {config.path} are stored as {info.stored}, and "
            f"dataset.stored is {config.stored}; pass --set dataset.stored={info.stored}"
        )
    shorter = resized_side(config.image_size)
    if info.stored != "jpeg" and shorter > SIDE:
        raise DatasetError(
            f"dataset 'imagenet': image_size {config.image_size} needs images with a shorter side "
            f"of {shorter} pixels, and those in {config.path} are resized to {SIDE}; prepare "
            "them with --stored jpeg, or choose a smaller image_size"
        )
