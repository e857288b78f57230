"""Multithreaded reader of ImageNet's shards with Pillow, for all engines except TensorFlow's.

Pillow releases Python's global interpreter lock in decoding and resampling, so that threads decode
in parallel and no samples are copied between processes. Pixels agree with ``tensorflow_reader``:
same decoder (libjpeg-turbo, accurate), same parts of the images, same interpolation between the
four nearest pixels. Only the rounding of pixels differs, and the colors at a crop's edges, because
TensorFlow's decoder does not read beyond them.
"""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from aiperf_hpc.errors import DatasetError, restated
from aiperf_hpc.replica.data import tfrecord
from aiperf_hpc.replica.data.arrays import Normalization
from aiperf_hpc.replica.data.base import WHOLE, Batch, Floats, Part, Pixels, filled, labelled_images
from aiperf_hpc.replica.data.imagenet import sample_order
from aiperf_hpc.replica.data.imagenet.dataset import DecodedImage, DecodedImages, ImageNetDataset
from aiperf_hpc.replica.data.imagenet.sample_order import MEAN, STD
from aiperf_hpc.replica.data.imagenet.stored_image import unpack
from aiperf_hpc.replica.data.sharded.dataset import SampleFiles

HELD_SHARDS = 2 * sample_order.OPEN_SHARDS
"""Maximum number of open shards: those of the current group and of the next one."""
_FLOOR = 0.5
"""Mean of the fraction that Pillow truncates from an interpolated pixel."""
SCALING = Normalization(tuple(mean - _FLOOR for mean in MEAN), STD).scaling
"""Normalization of a pixel."""


class _OpenShard:
    """An open shard, which is closed when no sample refers to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "file"):
            os.close(self.file)


class _Sample(NamedTuple):
    """Location of a sample in its shard, and its crop, or None for the central crop."""

    shard: _OpenShard
    offset: int
    size: int
    crop: Floats | None


Places = Iterator[tuple[int, Floats | None]]
"""Positions of samples in the shards, in reading order, and their crops."""


def train(
    dataset: ImageNetDataset, epoch: int, batch_size: int, seed: int, part: Part = WHOLE
) -> Iterator[Batch]:
    """Yield the training samples of one epoch in the order of ``sample_order``."""
    shards = dataset.training.shards
    together = sample_order.groups(len(shards), seed, epoch)
    reading = sample_order.reading_order(shards, together)
    places = _shuffled(reading, seed, epoch, dataset.min_crop_area)
    if not dataset.augment:
        places = ((place, None) for place, _ in places)
    return _batches(dataset, _Samples(dataset.training), places, batch_size, part)


def validation(dataset: ImageNetDataset, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
    """Yield the validation samples in the reading order of the shards."""
    shards = dataset.held_out.shards
    together = sample_order.grouped(list(range(len(shards))))
    order = sample_order.reading_order(shards, together).tolist()
    samples = _Samples(dataset.held_out)
    return _batches(dataset, samples, ((place, None) for place in order), batch_size, part)


def _shuffled(reading: NDArray[np.intp], seed: int, epoch: int, min_crop_area: float) -> Places:
    start = 0
    for window in sample_order.windows(len(reading), seed, epoch, min_crop_area):
        places = reading[start + window.order]
        yield from zip(places.tolist(), window.crops, strict=True)
        start += len(places)


class _Samples:
    """Locates samples in shards, some of which are kept open."""

    def __init__(self, files: SampleFiles) -> None:
        self._files = files
        self._open: OrderedDict[int, _OpenShard] = OrderedDict()

    def at(self, place: int, crop: Floats | None) -> _Sample:
        """Return the sample at a position. Raises DatasetError if its shard cannot be opened."""
        number, offset, size = self._files.locate(place)
        return _Sample(self._shard(number), offset, size, crop)

    def _shard(self, number: int) -> _OpenShard:
        shard = self._open.pop(number, None)
        if shard is None:
            path = self._files.folder / self._files.shards[number].file
            what = f"dataset 'imagenet': reading {path.parent} failed: cannot read {path.name}"
            with restated(what, DatasetError, "; prepare it again", caught=OSError):
                shard = _OpenShard(path)
        self._open[number] = shard
        if len(self._open) > HELD_SHARDS:
            self._open.popitem(last=False)
        return shard


def _batches(
    dataset: ImageNetDataset, samples: _Samples, places: Places, batch_size: int, part: Part
) -> Iterator[Batch]:
    size = dataset.info.input_shape("image")[0]

    def own() -> Iterator[list[_Sample]]:
        for whole in iter(lambda: list(islice(places, batch_size)), []):
            first, last = part.bounds(len(whole))
            if first < last:
                yield [samples.at(*place) for place in whole[first:last]]

    def empty(number: int) -> Batch:
        images = Pixels(np.empty((number, size, size, 3), np.uint8), SCALING)
        return labelled_images(images, np.empty(number, np.int32))

    return filled(own(), empty, partial(_load, dataset.decoded), dataset.parallel)


def _load(decoded: DecodedImages, sample: _Sample, batch: Batch, at: int) -> None:
    """Write the crop of a sample into its place in a batch; read and decode it unless cached."""
    pixels: Pixels = batch.inputs["image"]
    shard = sample.shard.path.name
    found = decoded.get(shard, sample.offset)
    if found is None:
        found = _decoded(sample)
        decoded.keep(shard, sample.offset, found)
    pixels.bytes[at] = cut(found.image, pixels.shape[1], sample.crop)
    batch.targets["label"][at] = found.label


def _decoded(sample: _Sample) -> DecodedImage:
    """Read and decode a sample. Raises DatasetError with the name of its shard if it is damaged."""
    path, damage = sample.shard.path, (OSError, SyntaxError, ValueError)
    what = f"dataset 'imagenet': reading {path.parent} failed: {path.name}"
    with restated(what, DatasetError, "; prepare it again", caught=damage):
        content = tfrecord.read_record(sample.shard.file, sample.offset, sample.size)
        found = unpack(content)
        return DecodedImage(rgb_image(found.encoded), found.label)


def rgb_image(encoded: bytes) -> Image.Image:
    """Return a stored image in RGB. The Exif orientation is ignored.

    Raises:
        OSError, SyntaxError, ValueError: the file is damaged.
    """
    with Image.open(io.BytesIO(encoded), formats=("JPEG", "PPM")) as image:
        image.load()
        return (
            image if image.mode == "RGB" else image.convert("RGB")
        )  # which would copy an RGB image


def cut(image: Image.Image, size: int, crop: Floats | None) -> NDArray[np.uint8]:
    """Return a part of an image, uint8 (size, size, 3).

    Args:
        image: image in RGB.
        size: side of the result in pixels.
        crop: a row of ``sample_order.crop_draws``, or None for the central crop.
    """
    width, height = image.size
    box = (
        sample_order.central_box(height, width, size)
        if crop is None
        else sample_order.random_box(crop, height, width)
    )
    right, bottom = box.left + box.width, box.top + box.height
    part = image.crop((box.left, box.top, right, bottom))
    extent = (0, 0, box.width, box.height)
    # Not `resize`, which averages in downscaling: tf.image.resize uses only four pixels.
    resized = part.transform(
        (size, size), Image.Transform.EXTENT, extent, Image.Resampling.BILINEAR
    )
    if crop is not None and sample_order.mirrored(crop):
        resized = resized.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(resized)
