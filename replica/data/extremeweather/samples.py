"""One map with its boxes: as the official files have it, as it is stored, and as it is read."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.data.tfrecord import Buffer, only_record
from aiperf_hpc.replica.data.weather.boxes import CHANNELS, MOST_BOXES, NONE
from aiperf_hpc.replica.data.weather.fields import CHANNELS as BOUNDS
from aiperf_hpc.trial import DatasetInfo

NAME = "extremeweather"
CLASSES = 4
BOX = 5
"""Numbers of a box."""
FAR = 1000.0
"""By how many times what is usual of a quantity a value may lie beside it: hundred times as much
rain falls in the worst of storms."""
_BOXES_BYTES = MOST_BOXES * BOX * 4

Floats = NDArray[np.float32]
Maps = Floats
Boxes = NDArray[np.int32]


class Sample(NamedTuple):
    """A map and its boxes."""

    fields: Maps
    """(height, width, 16), in the quantities' own units."""
    boxes: Boxes
    """(15, 5): the first row and column, those behind the last, the class; -1 where none is."""

    @property
    def content(self) -> bytes:
        """What is stored of it: its numbers, little-endian, the fields first."""
        return self.fields.astype("<f4", copy=False).tobytes() + self.boxes.astype("<i4").tobytes()


def content_bytes(shape: Sequence[int]) -> int:
    """Return the bytes that are stored of a map of a shape (height, width, channels)."""
    return math.prod(shape) * 4 + _BOXES_BYTES


def sha256_of(content: Buffer) -> str:
    """Return the SHA-256 of a sample: of what is stored of it."""
    return hashlib.sha256(content).hexdigest()


class ExtremeWeatherCodec:
    """See ``sharded.dataset.Codec``. A sample is a record of a TFRecord file."""

    name = NAME

    def empty(self, info: DatasetInfo, number: int) -> Batch:
        maps = np.empty((number, *info.input_shape("image")), np.float32)
        boxes = np.empty((number, MOST_BOXES, BOX), np.int32)
        return Batch({"image": maps, "boxes": boxes}, {"boxes": boxes})

    def decode(self, content: memoryview, batch: Batch, at: int) -> None:
        stored, maps = only_record(content), batch.inputs["image"]
        shape = maps.shape[1:]
        if len(stored) != content_bytes(shape):
            raise ValueError(f"{len(stored)} bytes are no map of {shape}")
        fields = np.frombuffer(stored, "<f4", math.prod(shape)).reshape(shape)
        boxes = np.frombuffer(stored, "<i4", MOST_BOXES * BOX, len(stored) - _BOXES_BYTES)
        scale(fields, maps[at])
        batch.targets["boxes"][at] = boxes.reshape(MOST_BOXES, BOX)

    def sha256(self, content: memoryview) -> str:
        return sha256_of(only_record(content))


def checked(image: Maps, rows: NDArray[np.generic]) -> Sample:
    """Return the sample of a map (16, height, width) and its rows of boxes.

    Raises:
        ValueError: what is wrong with it.
    """
    _check_fields(image)
    boxes = np.full((MOST_BOXES, BOX), NONE, np.int32)
    found = [each for each in rows.astype(np.float64).tolist() if any(n != NONE for n in each)]
    for number, each in enumerate(found):
        try:
            boxes[number] = _box(each, *image.shape[1:])
        except ValueError as error:
            raise ValueError(f"box {number + 1}: {error}") from None
    return Sample(np.ascontiguousarray(image.transpose(1, 2, 0), np.float32), boxes)


def _check_fields(image: Maps) -> None:
    """Require finite numbers that no damage has made. Raises ValueError."""
    least, most = image.min((1, 2)), image.max((1, 2))  # Not a number where one is none.
    for name, low, high in zip(CHANNELS, least.tolist(), most.tolist(), strict=True):
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError(f"channel {name} has numbers that are not finite")
        usual = BOUNDS[name]
        middle, far = (usual.low + usual.high) / 2.0, FAR * (usual.high - usual.low)
        for value in (low, high):
            if abs(value - middle) > far:
                raise ValueError(
                    f"channel {name} has {value:g}, where {usual.low:g} to {usual.high:g} is usual"
                )


def _box(numbers: Sequence[float], height: int, width: int) -> tuple[int, ...]:
    """Return a box as it is trained on: what of it lies in the map, in whole pixels."""
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"{numbers} are not finite numbers")
    *sides, label = numbers
    if label not in range(CLASSES):
        raise ValueError(f"its class is {label:g}; 0 to {CLASSES - 1} are known")
    top, left, bottom, right = (*map(math.floor, sides[:2]), *map(math.ceil, sides[2:]))
    told = f"rows {sides[0]:g} to {sides[2]:g}, columns {sides[1]:g} to {sides[3]:g}"
    if bottom <= top or right <= left:
        raise ValueError(f"{told}: it is empty")
    inside = max(top, 0), max(left, 0), min(bottom, height), min(right, width)
    if inside[2] <= inside[0] or inside[3] <= inside[1]:
        raise ValueError(f"{told}: it lies outside the map of {height} x {width}")
    return (*inside, int(label))


_LOW = np.array([BOUNDS[name].low for name in CHANNELS], np.float32)
_FACTOR = np.array([1.0 / (BOUNDS[name].high - BOUNDS[name].low) for name in CHANNELS], np.float32)


def scale(fields: Maps, out: Maps) -> None:
    """Write what networks read: each quantity from 0 to 1 between its usual bounds."""
    low, factor = _lines(fields.shape[1])
    # By rows, which stay in a cache between both; by cells of 16 it took four times as long.
    for row, scaled in zip(fields, out, strict=True):
        np.subtract(row.reshape(-1), low, out=scaled.reshape(-1))
        np.multiply(scaled.reshape(-1), factor, out=scaled.reshape(-1))


@lru_cache(maxsize=4)
def _lines(width: int) -> tuple[Floats, Floats]:
    """Return what is subtracted from the numbers of a row, and what they are multiplied by."""
    return np.tile(_LOW, width), np.tile(_FACTOR, width)
