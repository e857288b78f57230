"""Small official sources of CosmoFlow, DeepCAM and ExtremeWeather, written from known samples."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.replica.data import cosmoflow, deepcam, extremeweather
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.data.cosmoflow import Sample
from aiperf_hpc.replica.data.tfrecord import example, of_bytes, write_record
from aiperf_hpc.replica.data.weather.datasets import BOX_CHANNELS
from aiperf_hpc.replica.data.weather.fields import CHANNELS


def of_floats(values: Sequence[float]) -> bytes:
    """Return a feature with a list of floats: as of bytes, but in the field ``float_list``."""
    return b"\x12" + of_bytes(struct.pack(f"<{len(values)}f", *values))[1:]


class OfficialSource(NamedTuple):
    """A small source, in which each sample states its own number."""

    module: ModuleType
    write: Callable[[Path], object]
    """Writes it into a folder."""
    training: list[int]
    held_out: list[int]
    """The samples' numbers, in the order of the files."""
    numbers: Callable[[Batch], list[int]]
    """Returns the numbers of a batch's samples."""
    spoil: Callable[[Path, int], object]
    """Damages a training sample of a source by its place."""
    summary: str
    """Description that ``aiperf data prepare`` prints."""

    @property
    def name(self) -> str:
        return str(self.module.NAME)


# CosmoFlow


def sample_file(sample: Sample, *, compressed: bool) -> bytes:
    """Return the TFRecord file of a volume."""
    file = io.BytesIO()
    counts = sample.counts.astype("<i2").tobytes()
    write_record(
        file, example({b"x": of_bytes(counts), b"y": of_floats(sample.parameters.tolist())})
    )
    if not compressed:
        return file.getvalue()
    # Without a time, so that the same sample is the same file.
    packer = zlib.compressobj(wbits=31)
    return packer.compress(file.getvalue()) + packer.flush()


def volume(number: int, side: int = 4) -> Sample:
    """Return a volume, whose first parameter is its number."""
    counts = np.random.default_rng(number).poisson(3.0, (side, side, side, 4)).astype(np.int16)
    return Sample(counts, np.array([number / 100, 0.0, 0.5, -0.5], np.float32))


def write_volumes(folder: Path, *, compressed: bool = True) -> None:
    for part, first, number in (("train", 0, 11), ("validation", 50, 5)):
        (folder / part).mkdir(parents=True)
        for at in range(number):
            path = folder / part / f"univ_{at:03d}.tfrecord"
            path.write_bytes(sample_file(volume(first + at), compressed=compressed))


def _cut_volume(folder: Path, place: int) -> None:
    path = folder / "train" / f"univ_{place:03d}.tfrecord"
    path.write_bytes(path.read_bytes()[:-20])


# DeepCAM

FIELDS_SHAPE = HEIGHT, WIDTH, FIELDS = 32, 48, 5
LEAST = np.arange(FIELDS, dtype=np.float32) - 2.0
LARGEST = LEAST + np.array([1.0, 10.0, 0.5, 1e5, 2.0], np.float32)


def fields_of(number: int) -> Any:  # noqa: ANN401 -- an array
    """Return fields, whose first value is the number once it is scaled."""
    found = np.random.default_rng(number).uniform(0, 1, FIELDS_SHAPE)
    found[0, 0, 0] = number / 100
    return (LEAST + found * (LARGEST - LEAST)).astype(np.float32)


def mask_of(number: int) -> Any:  # noqa: ANN401 -- an array
    return np.random.default_rng(number + 1000).integers(0, 3, (HEIGHT, WIDTH))


def write_climate(path: Path, **datasets: Any) -> None:  # noqa: ANN401 -- arrays
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            if values is not None:
                file[f"climate/{name}"] = values


def write_map(path: Path, number: int, **changed: Any) -> None:  # noqa: ANN401 -- arrays
    """Write a map as the official files are, whose masks are of 64 bits."""
    write_climate(path, **{"data": fields_of(number), "labels_0": mask_of(number)} | changed)


def write_maps(folder: Path) -> None:
    folder.mkdir()
    write_climate(folder / "stats.h5", minval=LEAST, maxval=LARGEST)
    for part, first, number in (("train", 0, 9), ("validation", 50, 4)):
        (folder / part).mkdir()
        for at in range(number):
            write_map(folder / part / f"data-{at:03d}.h5", first + at)


def _spoil_map(folder: Path, place: int) -> None:
    write_map(folder / "train" / f"data-{place:03d}.h5", place, data=fields_of(1)[0])


# ExtremeWeather

YEARS, MAPS = ("1979", "1980", "1981"), 5
YEAR_SHAPE = (MAPS, 16, 4, 6)
LOW, HIGH = (
    np.array([getattr(CHANNELS[name], bound) for name in BOX_CHANNELS])[:, None, None]
    for bound in ("low", "high")
)


def scaled_year(seed: int, height: int = YEAR_SHAPE[2]) -> NDArray[np.float64]:
    """Return what networks read of a year, but with the channels first."""
    return np.random.default_rng(seed).standard_normal((MAPS, 16, height, YEAR_SHAPE[3]))


def write_year(path: Path, seed: int, height: int = YEAR_SHAPE[2]) -> None:
    """Write a year, of which the first box of each map has the year's and the map's numbers."""
    boxes = np.full((MAPS, 15, 5), -1.0, np.float32)
    boxes[:, 0] = [[0, 0, 1 + seed % 3, 1 + each, each % 4] for each in range(MAPS)]
    with h5py.File(path, "w") as file:
        file["images"] = (LOW + (HIGH - LOW) * scaled_year(seed, height)).astype(np.float32)
        file["boxes"] = boxes


def write_years(folder: Path) -> None:
    folder.mkdir()
    for seed, year in enumerate(YEARS):
        write_year(folder / f"climo_{year}.h5", seed)


def _spoil_year(folder: Path, place: int) -> None:
    with h5py.File(folder / "climo_1980.h5", "r+") as file:
        file["images"][place, 0, 0, 0] = np.inf


SOURCES = {
    each.name: each
    for each in (
        OfficialSource(
            cosmoflow,
            write_volumes,
            list(range(11)),
            list(range(50, 55)),
            lambda batch: [round(100 * float(value)) for value in batch.targets["values"][:, 0]],
            _cut_volume,
            "11 + 5 volumes of 4 x 4 x 4 x 4, GZIP, for 3 + 1 shards",
        ),
        OfficialSource(
            deepcam,
            write_maps,
            list(range(9)),
            list(range(50, 54)),
            lambda batch: [round(100 * float(v)) for v in batch.inputs["image"][:, 0, 0, 0]],
            _spoil_map,
            "9 + 4 maps of 32 x 48 x 5, for 3 + 1 shards",
        ),
        OfficialSource(
            extremeweather,
            write_years,
            [*range(5), *range(10, 15)],
            list(range(20, 25)),
            lambda batch: [10 * (row - 1) + column - 1 for row, column in
                           batch.targets["boxes"][:, 0, 2:4].tolist()],
            _spoil_year,
            "3 years of maps of 4 x 6 x 16, climo_1981.h5 held out, for 3 + 2 shards",
        ),
    )
}  # fmt: skip
