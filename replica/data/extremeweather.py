"""The ExtremeWeather dataset: maps of a climate model with boxes around cyclones and rivers.

A year is an HDF5 file, ``climo_YYYY.h5``: ``images``, float32 (maps, 16, height, width), and
``boxes`` (maps, 15, 5): first row, first column, last row, last column and class of each box, with
-1 in unused rows. [Racah et al. 2017; extremeweatherdataset.github.io]

The last year is held out, because the benchmark's paper does not state which maps it held out. A
shard has maps of one year, which are read one by one; a record is a map's numbers, fields first.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.datasets import stat_of
from aiperf_hpc.errors import DatasetError, restated
from aiperf_hpc.replica.data import hdf5
from aiperf_hpc.replica.data.base import Batch, Floats
from aiperf_hpc.replica.data.sharded import dataset, preparation
from aiperf_hpc.replica.data.sharded.dataset import PARTS
from aiperf_hpc.replica.data.staging import Options
from aiperf_hpc.replica.data.tfrecord import OVERHEAD, only_record, write_record
from aiperf_hpc.replica.data.weather.datasets import BOX_CHANNELS as CHANNELS
from aiperf_hpc.replica.data.weather.datasets import MOST_BOXES, NONE
from aiperf_hpc.replica.data.weather.fields import CHANNELS as BOUNDS
from aiperf_hpc.trial import TensorSpec

SHARD_SAMPLES = 20
"""Default number of maps per shard: about a gigabyte for the official maps."""
NAME = "extremeweather"
CLASSES = 4
BOX = 5
"""Number of values per box."""
FAR = 1000.0
"""Maximum distance of a value from the middle of its usual range, in widths of that range: rain in
the worst storms is a hundred times the usual."""
_BOXES_BYTES = MOST_BOXES * BOX * 4

Maps = Floats
Boxes = NDArray[np.int32]


class Sample(NamedTuple):
    """A map and its boxes."""

    fields: Maps
    """Fields, (height, width, 16), in the quantities' units."""
    boxes: Boxes
    """Boxes, (15, 5): first row and column, row and column after the last, class; -1 if unused."""

    @property
    def content(self) -> bytes:
        """Stored bytes of the sample: its numbers, little-endian, fields first."""
        return self.fields.astype("<f4", copy=False).tobytes() + self.boxes.astype("<i4").tobytes()


def content_bytes(shape: Sequence[int]) -> int:
    """Return the stored size in bytes of a map of shape (height, width, channels)."""
    return math.prod(shape) * 4 + _BOXES_BYTES


class ExtremeWeatherCodec:
    """See ``sharded.dataset.Codec``. A sample is a record of a TFRecord file."""

    name = NAME

    def decode(self, content: memoryview, batch: Batch, at: int) -> None:
        stored, maps = only_record(content), batch.inputs["image"]
        shape = maps.shape[1:]
        if len(stored) != content_bytes(shape):
            raise ValueError(f"{len(stored)} bytes are not a map of {shape}")
        fields = np.frombuffer(stored, "<f4", math.prod(shape)).reshape(shape)
        boxes = np.frombuffer(stored, "<i4", MOST_BOXES * BOX, len(stored) - _BOXES_BYTES)
        scale(fields, maps[at])
        batch.targets["boxes"][at] = boxes.reshape(MOST_BOXES, BOX)

    def sha256(self, content: memoryview) -> str:
        return hashlib.sha256(only_record(content)).hexdigest()


def checked_sample(image: Maps, rows: NDArray[np.generic]) -> Sample:
    """Return the validated sample of a map, (16, height, width), and its rows of boxes.

    Raises:
        ValueError: the map or a box is invalid.
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
    """Require finite numbers near the usual ranges. Raises ValueError."""
    least, most = image.min((1, 2)), image.max((1, 2))  # NaN if any number is NaN.
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
    """Return a box for training: its part within the map, in whole pixels."""
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"{numbers} are not finite numbers")
    *sides, label = numbers
    if label not in range(CLASSES):
        raise ValueError(f"its class is {label:g}; 0 to {CLASSES - 1} are known")
    top, left, bottom, right = (*map(math.floor, sides[:2]), *map(math.ceil, sides[2:]))
    place = f"rows {sides[0]:g} to {sides[2]:g}, columns {sides[1]:g} to {sides[3]:g}"
    if bottom <= top or right <= left:
        raise ValueError(f"{place}: it is empty")
    inside = max(top, 0), max(left, 0), min(bottom, height), min(right, width)
    if inside[2] <= inside[0] or inside[3] <= inside[1]:
        raise ValueError(f"{place}: it lies outside the map of {height} x {width}")
    return (*inside, int(label))


_LOW = np.array([BOUNDS[name].low for name in CHANNELS], np.float32)
_FACTOR = np.array([1.0 / (BOUNDS[name].high - BOUNDS[name].low) for name in CHANNELS], np.float32)


def scale(fields: Maps, out: Maps) -> None:
    """Scale the usual bounds of each quantity to 0 and 1 for the network."""
    low, factor = _lines(fields.shape[1])
    # By rows, which stay in a cache between both steps; steps of one cell are four times slower.
    for row, scaled in zip(fields, out, strict=True):
        np.subtract(row.reshape(-1), low, out=scaled.reshape(-1))
        np.multiply(scaled.reshape(-1), factor, out=scaled.reshape(-1))


@lru_cache(maxsize=4)
def _lines(width: int) -> tuple[Floats, Floats]:
    """Return the shifts and the factors for the numbers of a row."""
    return np.tile(_LOW, width), np.tile(_FACTOR, width)


IMAGES, BOXES = "images", "boxes"
PATTERN = "climo_*.h5"


@dataclass(frozen=True, slots=True)
class Year:
    """A file of maps."""

    path: Path
    maps: int
    shape: tuple[int, int, int]
    """Shape of a map, (height, width, channels)."""
    boxes: int
    """Number of boxes in all maps."""


class Map(NamedTuple):
    """A map of a file."""

    year: Year
    number: int


def years_of(folder: Path) -> list[Year]:
    """Return the files of a folder, sorted by name, whose maps all have the same shape.

    Raises:
        DatasetError: there are fewer than two files, a file (named in the message) is invalid, or
            there are no boxes in the last file, which is held out, or in all other files.
    """
    hdf5.require_h5py()
    paths = sorted(folder.glob(PATTERN))
    if len(paths) < 2:
        raise DatasetError(
            f"dataset '{NAME}': {folder} has {len(paths)} files named {PATTERN}; at least two are "
            "required; the last is held out"
        )
    years = [_year(path) for path in paths]
    for year in years:
        if year.shape != years[0].shape:
            raise DatasetError(
                f"{year.path} has maps of {year.shape}, and {years[0].path.name} of "
                f"{years[0].shape}"
            )
    if not years[-1].boxes:
        raise DatasetError(
            f"dataset '{NAME}': {paths[-1]} is held out and has no box: there is nothing to find "
            "in it"
        )
    if not any(year.boxes for year in years[:-1]):
        raise DatasetError(
            f"dataset '{NAME}': no file of {folder} has a box but {paths[-1].name}, which is held "
            "out: there is nothing to learn from"
        )
    return years


def _year(path: Path) -> Year:
    with _file_errors(path), hdf5.opened(path) as file:
        images, boxes = hdf5.array_of(file, IMAGES), hdf5.array_of(file, BOXES)
        shape, rows = tuple(images.shape), tuple(boxes.shape)
        kinds = images.dtype, boxes.dtype
        used = boxes[()] if boxes.dtype.kind in "iuf" else None
    if len(shape) != 4 or shape[1] != len(CHANNELS) or kinds[0] != "float32" or not all(shape):
        raise DatasetError(
            f"{path}: '{IMAGES}' is {kinds[0]} {shape}; float32 (maps, {len(CHANNELS)}, height, "
            "width) is required"
        )
    wanted = shape[0], MOST_BOXES, BOX
    if rows != wanted or used is None:
        raise DatasetError(f"{path}: '{BOXES}' is {kinds[1]} {rows}; numbers {wanted} are required")
    return Year(path, shape[0], (shape[2], shape[3], shape[1]), int((used != NONE).any(2).sum()))


@contextmanager
def _file_errors(what: object) -> Iterator[None]:
    """Convert h5py's exceptions while reading a file to a DatasetError."""
    failures = (OSError, ValueError)
    with restated(f"cannot read {what}", DatasetError, caught=failures), hdf5.reading():
        yield


class YearFiles(preparation.Source[Map]):
    """The official files of a folder. Raises DatasetError like ``years_of``."""

    dataset = NAME
    unit = "maps"

    def __init__(self, folder: Path, options: Options) -> None:
        self._arrays: dict[Path, tuple[Any, Any]] = {}
        """The images and boxes of each file, which stays open during the preparation."""
        self.years = years_of(folder)
        self.shape = self.years[0].shape
        boxes = TensorSpec(shape=(MOST_BOXES, BOX), dtype="int32")
        inputs = {"image": TensorSpec(shape=self.shape), "boxes": boxes}
        self.kind = preparation.SampleKind(
            " x ".join(map(str, self.shape)), inputs, {"boxes": boxes}
        )

    @property
    def summary(self) -> str:
        last = self.years[-1].path.name
        return f"{len(self.years)} years of maps of {self.kind.text}, {last} held out"

    def jobs(self, shards: int | None) -> list[preparation.ShardJob[Map]]:
        return _jobs(self.years, shards)

    @contextmanager
    def opened(self, unpacked: Path, options: Options) -> Iterator[None]:
        with ExitStack() as files:
            for path in (year.path for year in self.years):
                with _file_errors(path):
                    file = files.enter_context(hdf5.open_file(path))
                    self._arrays[path] = hdf5.array_of(file, IMAGES), hdf5.array_of(file, BOXES)
            yield

    def read(self, sample: Map) -> Sample:
        """Return a validated map with its boxes. Raises DatasetError."""
        path, number = sample.year.path, sample.number
        images, boxes = self._arrays[path]
        with _file_errors(f"map {number + 1} of {path}"):
            image, rows = images[number], boxes[number]
        with restated(f"{path}: map {number + 1}", DatasetError, caught=ValueError):
            return checked_sample(image, rows)

    def name(self, sample: Map) -> str:
        return f"{sample.year.path.name}\t{sample.number}"

    def size(self, sample: Map) -> int:
        return content_bytes(sample.year.shape) + OVERHEAD

    def stamp(self, sample: Map) -> str:
        found = stat_of(sample.year.path)
        return f"{self.name(sample)}\t{found.st_size}\t{found.st_mtime_ns}"

    def store(self, sample: Map, shard: BinaryIO) -> preparation.StoredSample:
        content = self.read(sample).content
        write_record(shard, content)
        return preparation.StoredSample(
            len(content) + OVERHEAD, hashlib.sha256(content).hexdigest()
        )


def _jobs(years: Sequence[Year], wanted: int | None) -> list[preparation.ShardJob[Map]]:
    training = sum(year.maps for year in years[:-1])
    if wanted is not None and not len(years) - 1 <= wanted <= training:
        raise DatasetError(
            f"--shards {wanted}: for {len(years) - 1} years of {training} training maps, "
            f"{len(years) - 1} to {training}"
        )
    each = SHARD_SAMPLES if wanted is None else -(-training // wanted)
    pieces = {
        "train": _pieces(years[:-1], wanted),
        "validation": [-(-years[-1].maps // each)],
    }
    return [
        job
        for part, chosen in zip(PARTS, (years[:-1], years[-1:]), strict=True)
        for job in preparation.numbered_jobs(part, list(_cut(chosen, pieces[part])))
    ]


def _pieces(years: Sequence[Year], wanted: int | None) -> list[int]:
    """Return the number of shards per year: ``wanted`` in total, of similar size."""
    if wanted is None:
        return [-(-year.maps // SHARD_SAMPLES) for year in years]
    pieces = [1] * len(years)
    for _ in range(wanted - len(years)):
        largest = max(range(len(years)), key=lambda i: Fraction(years[i].maps, pieces[i]))
        pieces[largest] += 1
    return pieces


def _cut(years: Sequence[Year], pieces: Sequence[int]) -> Iterator[list[Map]]:
    for year, number in zip(years, pieces, strict=True):
        edges = [year.maps * edge // number for edge in range(number + 1)]
        yield from ([Map(year, place) for place in range(*edge)] for edge in pairwise(edges))


load = partial(dataset.load, ExtremeWeatherCodec())
prepare = partial(preparation.prepare_shards, YearFiles)
verify = partial(dataset.verify, ExtremeWeatherCodec())
