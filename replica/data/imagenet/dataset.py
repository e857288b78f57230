"""The ImageNet dataset: prepared folders and their readers."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.datasets import load_archives
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.base import WHOLE, Batch, Part
from aiperf_hpc.replica.data.imagenet.sample_order import resized_side
from aiperf_hpc.replica.data.imagenet.stored_image import SIDE
from aiperf_hpc.replica.data.sharded import dataset as sharded
from aiperf_hpc.trial import DatasetInfo, TensorSpec

if TYPE_CHECKING:
    from PIL import Image

PIXEL_BYTES = 4
"""Number of bytes per RGB pixel in Pillow's memory."""


class DecodedImage(NamedTuple):
    """An uncropped RGB image and its class."""

    image: Image.Image
    label: int


class DecodedImages:
    """Cache of decoded images for later epochs: the first images, as many as fit.

    No image is evicted. Each image is used once per epoch, so that the least recently used image is
    the next one needed.
    """

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes
        self._images: dict[tuple[str, int], DecodedImage] = {}
        self._lock = Lock()

    def get(self, shard: str, offset: int) -> DecodedImage | None:
        """Return the image of the record at this byte offset of a shard if it is cached."""
        return self._images.get((shard, offset))

    def keep(self, shard: str, offset: int, decoded: DecodedImage) -> None:
        """Cache a copy of an image if there is enough space. Thread-safe."""
        needed = PIXEL_BYTES * decoded.image.width * decoded.image.height
        with self._lock:
            if needed > self._left or (shard, offset) in self._images:
                return
            self._left -= needed
        # A copy: an opened image holds a reference to its file.
        self._images[shard, offset] = decoded._replace(image=decoded.image.copy())


@dataclass(frozen=True, slots=True)
class ImageNetDataset:
    """The shards of a prepared folder."""

    info: DatasetInfo
    training: sharded.SampleFiles
    held_out: sharded.SampleFiles
    augment: bool
    parallel: int
    """Number of images decoded concurrently; no sample depends on it."""
    reader: Literal["tensorflow", "pillow"]
    """The reader module, which is imported at the first use, as is its framework."""
    decoded: DecodedImages
    """Image cache of Pillow's reader."""
    min_crop_area: float
    """Minimum fraction of an image's area in a training crop."""

    def train(self, epoch: int, batch_size: int, seed: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every training sample once; (seed, epoch) determine order and augmentation.

        Raises:
            DatasetError: during iteration, if a shard is damaged.
        """
        return cast("Iterator[Batch]", self._reader.train(self, epoch, batch_size, seed, part))

    def validation(self, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every validation sample once, in the shards' order. Raises like ``train``."""
        return cast("Iterator[Batch]", self._reader.validation(self, batch_size, part))

    @property
    def _reader(self) -> ModuleType:
        return importlib.import_module(f"{__package__}.{self.reader}_reader")


def load(config: DatasetConfig, cores: int, engine: str) -> ImageNetDataset:
    """Open a prepared folder; each shard's size and first bytes are checked.

    The engine ``tensorflow`` uses tf.data; all others use Pillow.

    Raises:
        DatasetError: no folder is given, the folder was not prepared or does not store images in
            the configured format, or a shard is missing, truncated or not the prepared one.
    """
    folder = sharded.prepared_folder(config)
    info, index = sharded.open_index(folder, "imagenet")
    _check_format(info, config)
    sharded.verify_shards(folder, index.shards, cores, "imagenet", whole=False)
    size = (config.image_size, config.image_size, 3)
    used = {
        "inputs": {"image": TensorSpec(shape=size)},
        "archives": load_archives(folder),
    }
    return ImageNetDataset(
        info.model_copy(update=used),
        *sharded.load_files(folder, index, "imagenet"),
        config.augment,
        max(1, min(config.parallel_transforms, cores)),
        "tensorflow" if engine == "tensorflow" else "pillow",
        DecodedImages(int(config.decoded_cache_gib * 2**30)),
        config.min_crop_area,
    )


def _check_format(info: DatasetInfo, config: DatasetConfig) -> None:
    """Check that the stored images have the configured format and sufficient size.

    Raises:
        DatasetError: the format differs or the images are too small.
    """
    if info.storage_format != config.storage_format:
        raise DatasetError(
            f"dataset 'imagenet': the images in {config.path} are stored as {info.storage_format}, "
            f"and dataset.storage_format is {config.storage_format}; pass --set "
            f"dataset.storage_format={info.storage_format}"
        )
    shorter = resized_side(config.image_size)
    if info.storage_format != "jpeg" and shorter > SIDE:
        raise DatasetError(
            f"dataset 'imagenet': image_size {config.image_size} needs images with a shorter side "
            f"of {shorter} pixels, and those in {config.path} are resized to {SIDE}; prepare "
            "them with --storage-format jpeg, or choose a smaller image_size"
        )
