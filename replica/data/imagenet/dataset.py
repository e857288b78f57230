"""ImageNet as a dataset, for each of its readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aiperf_hpc.replica.data.base import WHOLE, Batch, Part
from aiperf_hpc.replica.data.sharded.index import (
    ShardIndex,
    Sizes,
)
from aiperf_hpc.trial import DatasetInfo

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
    reader: Callable[[], Reader]
    """Returns the reader of the shards; called for samples, so that no framework is imported
    before."""
    decoded: DecodedImages
    """Images that Pillow's reader keeps."""
    least_crop: float
    """Least fraction of an image that a training crop covers."""

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
    """A module that reads the shards: see ``Dataset``."""

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
