"""Which of ImageNet's samples come when, and how each is cut: the same for every reader.

All of it follows from the shards, the seed and the epoch, and is drawn here, in numpy: shards in
a drawn order, 16 of them read in turn, a record each; then windows of 2,048 of these records
shuffled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.replica.data import rng
from aiperf_hpc.replica.data.rng import Purpose
from aiperf_hpc.replica.data.sharded.index import Shard

OPEN_SHARDS = 16
"""Shards read at once. Fixed, since the order depends on it."""
WINDOW = 2048
"""Records shuffled together; about 230 MB of ImageNet."""

MEAN = (123.675, 116.28, 103.53)
"""Means of the red, green and blue training pixels, 0 to 255: 0.485, 0.456 and 0.406 of 255, the
values in general use for ILSVRC 2012."""
STD = (58.395, 57.12, 57.375)
"""Standard deviations of these pixels: 0.229, 0.224 and 0.225 of 255."""

RESIZED_RATIO = 256 / 224
"""The shorter side of a resized validation image, over the image size."""

CROP_AREA = (0.08, 1.0)
"""Share of the image that a training crop covers (Szegedy et al., 2015), drawn uniformly."""
CROP_ASPECT = (3 / 4, 4 / 3)
"""Width over height of a training crop; its logarithm is drawn uniformly."""
ATTEMPTS = 10
"""Shapes of a crop that are tried before the whole image is taken."""


class Window(NamedTuple):
    """Samples that are shuffled together."""

    order: NDArray[np.int64]
    """Which of the records of this window comes first, second, ..., (samples,)."""
    crops: NDArray[np.float32]
    """Draws for each of them, in this order, a row each: see ``crop_draws``."""


class Box(NamedTuple):
    """A part of an image, in pixels from its top left."""

    top: int
    left: int
    height: int
    width: int


def windows(
    samples: int, seed: int, epoch: int, least_crop: float = CROP_AREA[0]
) -> Iterator[Window]:
    """Yield the windows of an epoch of so many samples; the last one may be smaller.

    ``least_crop`` is the least share of an image that a training crop covers.
    """
    for number, start in enumerate(range(0, samples, WINDOW)):
        count = min(WINDOW, samples - start)
        order = rng.permutation(count, Purpose.WINDOWS, seed, epoch, number)
        crops = crop_draws(count, Purpose.CROP, seed, epoch, number, least=least_crop)
        yield Window(order.astype(np.int64), crops)


def groups(shards: int, seed: int, epoch: int) -> list[list[int]]:
    """Return the shards of an epoch, those together that are read at once."""
    order = rng.permutation(shards, Purpose.SHARDS, seed, epoch).tolist()
    return grouped(order)


def grouped(shards: list[int]) -> list[list[int]]:
    """Return the shards in order, those together that are read at once."""
    return [shards[at : at + OPEN_SHARDS] for at in range(0, len(shards), OPEN_SHARDS)]


def reading_order(shards: Sequence[Shard], together: list[list[int]]) -> NDArray[np.intp]:
    """Return the places in the shards of all records, in the order in which they are read: one of
    each shard of a group in turn, until all of them are at their end."""
    starts = [0, *accumulate(shard.samples for shard in shards)]
    parts = []
    for group in together:
        counts = [shards[shard].samples for shard in group]
        places = np.concatenate([np.arange(count) for count in counts])
        # Stable, so that records at the same place in their shards come in the order of the shards.
        turn = np.argsort(places, kind="stable")
        parts.append((places + np.repeat([starts[shard] for shard in group], counts))[turn])
    return np.concatenate(parts)


def crop_draws(count: int, *key: int, least: float = CROP_AREA[0]) -> NDArray[np.float32]:
    """Draw the training crops of some samples, float32 (count, 2 * ATTEMPTS + 3).

    The columns are the widths that are tried and the heights, both in units of the square root of
    the image's area; how far down and right the crop is, 0 to 1 of the room that there is; and a
    number that is below 1/2 when the crop is to be mirrored. What is left for a reader is
    arithmetic that has one result on every machine.
    """
    words = rng.words(count * (2 * ATTEMPTS + 3), *key).reshape(count, -1)
    # 24 bits: more may round to 1 in float32, and that would put a crop beside its image.
    uniform = (words >> np.uint64(40)).astype(np.float64) * 2.0**-24
    side = np.sqrt(least + (CROP_AREA[1] - least) * uniform[:, :ATTEMPTS])
    low, high = np.log(CROP_ASPECT)
    slant = np.exp((low + (high - low) * uniform[:, ATTEMPTS : 2 * ATTEMPTS]) / 2)
    drawn = np.concatenate([side * slant, side / slant, uniform[:, 2 * ATTEMPTS :]], axis=1)
    crops: NDArray[np.float32] = drawn.astype(np.float32)
    return crops


def random_box(crop: NDArray[np.float32], height: int, width: int) -> Box:
    """Return a training crop of an image: of the first shape that fits, or the whole image."""
    numbers = crop.astype(np.float64)
    root = np.sqrt(float(height * width))
    # rint takes halves to even numbers as tf.round does: crops are the same to the pixel.
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
    """Return what is left of an image for validation.

    Its shorter side would be resized to 256/224 of ``size`` and its centre cropped. The part that
    will be the centre is cut out first, to the pixel, and it alone is resized: the same result for
    less work.
    """
    share = size / resized_side(size)
    side = max(1, int(np.rint(min(height, width) * share)))
    return Box((height - side) // 2, (width - side) // 2, side, side)


def resized_side(size: int) -> int:
    """Return the shorter side of a validation image that is resized before its crop of a size."""
    return round(size * RESIZED_RATIO)


def mirrored(crop: NDArray[np.float32]) -> bool:
    """Return whether a training crop is mirrored."""
    return bool(crop[-1] < 0.5)
