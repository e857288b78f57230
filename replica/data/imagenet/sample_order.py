"""Order and crops of ImageNet's samples, identical for all readers.

They depend only on the shards, the seed and the epoch, and are sampled here in numpy. Shards are
read in random order, one record at a time from each of 16 shards in turn; then windows of 2,048
records are shuffled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.replica.data import rng
from aiperf_hpc.replica.data.rng import Purpose
from aiperf_hpc.replica.data.sharded.dataset import Shard

OPEN_SHARDS = 16
"""Number of shards read in turn. Fixed, because the order depends on it."""
WINDOW = 2048
"""Number of records shuffled together; about 230 MB of ImageNet."""

MEAN = (123.675, 116.28, 103.53)
"""Means of the red, green and blue training pixels, 0 to 255: 0.485, 0.456 and 0.406 of 255, the
values in general use for ILSVRC 2012."""
STD = (58.395, 57.12, 57.375)
"""Standard deviations of these pixels: 0.229, 0.224 and 0.225 of 255."""

RESIZED_RATIO = 256 / 224
"""Ratio of the shorter side of a resized validation image to the image size."""

CROP_AREA = (0.08, 1.0)
"""Range of a training crop's area fraction (Szegedy et al., 2015), sampled uniformly."""
CROP_ASPECT = (3 / 4, 4 / 3)
"""Range of a training crop's width over height; its logarithm is sampled uniformly."""
ATTEMPTS = 10
"""Number of crop shapes to try before using the whole image."""


class Window(NamedTuple):
    """Samples that are shuffled together."""

    order: NDArray[np.int64]
    """Record numbers within this window in shuffled order, (samples,)."""
    crops: NDArray[np.float32]
    """Crop parameters in this order, one row per record: see ``crop_draws``."""


class Box(NamedTuple):
    """A part of an image, in pixels from its top left."""

    top: int
    left: int
    height: int
    width: int


def windows(
    samples: int, seed: int, epoch: int, min_crop_area: float = CROP_AREA[0]
) -> Iterator[Window]:
    """Yield the windows of an epoch of ``samples``; the last one may be smaller.

    ``min_crop_area`` is the minimum fraction of an image's area in a training crop.
    """
    for number, start in enumerate(range(0, samples, WINDOW)):
        count = min(WINDOW, samples - start)
        order = rng.permutation(count, Purpose.WINDOWS, seed, epoch, number)
        crops = crop_draws(count, Purpose.CROP, seed, epoch, number, least=min_crop_area)
        yield Window(order.astype(np.int64), crops)


def groups(shards: int, seed: int, epoch: int) -> list[list[int]]:
    """Return the shards of an epoch in random order, in groups that are read in turn."""
    order = rng.permutation(shards, Purpose.SHARDS, seed, epoch).tolist()
    return grouped(order)


def grouped(shards: list[int]) -> list[list[int]]:
    """Return the shards in the given order, in groups that are read in turn."""
    return [shards[at : at + OPEN_SHARDS] for at in range(0, len(shards), OPEN_SHARDS)]


def reading_order(shards: Sequence[Shard], together: list[list[int]]) -> NDArray[np.intp]:
    """Return the positions of all records in reading order: one record of each shard of a group
    in turn, until all of these shards are exhausted."""
    starts = [0, *accumulate(shard.samples for shard in shards)]
    parts = []
    for group in together:
        counts = [shards[shard].samples for shard in group]
        places = np.concatenate([np.arange(count) for count in counts])
        # Stable: records at the same position in their shards are read in the order of the shards.
        turn = np.argsort(places, kind="stable")
        parts.append((places + np.repeat([starts[shard] for shard in group], counts))[turn])
    return np.concatenate(parts)


def crop_draws(count: int, *key: int, least: float = CROP_AREA[0]) -> NDArray[np.float32]:
    """Sample the training crops of ``count`` samples, float32 (count, 2 * ATTEMPTS + 3).

    The columns are the widths and the heights to try, both in units of the square root of the
    image's area; the vertical and horizontal offsets of the crop as a fraction, 0 to 1, of the
    available range; and a number below 1/2 if the crop is mirrored. The remaining arithmetic of a
    reader has the same result on all machines.
    """
    words = rng.words(count * (2 * ATTEMPTS + 3), *key).reshape(count, -1)
    # 24 bits: more may round to 1 in float32, which would move a crop out of its image.
    uniform = (words >> np.uint64(40)).astype(np.float64) * 2.0**-24
    side = np.sqrt(least + (CROP_AREA[1] - least) * uniform[:, :ATTEMPTS])
    low, high = np.log(CROP_ASPECT)
    slant = np.exp((low + (high - low) * uniform[:, ATTEMPTS : 2 * ATTEMPTS]) / 2)
    drawn = np.concatenate([side * slant, side / slant, uniform[:, 2 * ATTEMPTS :]], axis=1)
    crops: NDArray[np.float32] = drawn.astype(np.float32)
    return crops


def random_box(crop: NDArray[np.float32], height: int, width: int) -> Box:
    """Return a training crop of an image: the first shape that fits, or the whole image."""
    numbers = crop.astype(np.float64)
    root = np.sqrt(float(height * width))
    # rint rounds halves to even numbers like tf.round: crops are equal to the pixel.
    widths = np.rint(root * numbers[:ATTEMPTS])
    heights = np.rint(root * numbers[ATTEMPTS : 2 * ATTEMPTS])
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    if not fits.any():
        return Box(0, 0, height, width)
    first = int(fits.argmax())
    tall, wide = int(heights[first]), int(widths[first])
    down, right = numbers[2 * ATTEMPTS : 2 * ATTEMPTS + 2]
    return Box(int(down * (height - tall + 1)), int(right * (width - wide + 1)), tall, wide)


def central_box(height: int, width: int, size: int) -> Box:
    """Return the part of an image for validation.

    The usual procedure resizes the shorter side to 256/224 of ``size`` and crops the center. Here,
    the corresponding part is cropped first, to the pixel, and only this part is resized: the same
    result with less work.
    """
    share = size / resized_side(size)
    side = max(1, int(np.rint(min(height, width) * share)))
    return Box((height - side) // 2, (width - side) // 2, side, side)


def resized_side(size: int) -> int:
    """Return the shorter side of a resized validation image before the crop to ``size``."""
    return round(size * RESIZED_RATIO)


def mirrored(crop: NDArray[np.float32]) -> bool:
    """Return whether a training crop is mirrored."""
    return bool(crop[-1] < 0.5)
