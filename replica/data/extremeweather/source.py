"""The official files: what is in one, and one map of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.extras import HDF5
from aiperf_hpc.replica.data.extremeweather import samples
from aiperf_hpc.replica.data.extremeweather.samples import BOX, NAME, Sample
from aiperf_hpc.replica.data.weather.boxes import CHANNELS, MOST_BOXES

IMAGES, BOXES = "images", "boxes"
PATTERN = "climo_*.h5"


@dataclass(frozen=True, slots=True)
class Year:
    """A file of maps."""

    path: Path
    maps: int
    shape: tuple[int, int, int]
    """(height, width, channels)."""


def years_of(folder: Path) -> list[Year]:
    """Return the files of a folder in the order of their names, all of maps of one shape.

    Raises:
        DatasetError: there are fewer than two, or one is no such file; it is named.
    """
    if not HDF5.installed:
        raise DatasetError(f"reading HDF5 needs the package 'h5py': {HDF5.remedy}")
    paths = sorted(folder.glob(PATTERN))
    if len(paths) < 2:
        raise DatasetError(
            f"dataset '{NAME}': {folder} has {len(paths)} files named {PATTERN}; two are needed at "
            "least, of which the last is held out"
        )
    years = [_year(path) for path in paths]
    for year in years:
        if year.shape != years[0].shape:
            raise DatasetError(
                f"{year.path} has maps of {year.shape}, and {years[0].path.name} of "
                f"{years[0].shape}"
            )
    return years


def _year(path: Path) -> Year:
    with opened(path) as (images, boxes):
        shape, rows = tuple(images.shape), tuple(boxes.shape)
        kind = images.dtype
    if len(shape) != 4 or shape[1] != len(CHANNELS) or kind != "float32" or not shape[0]:
        raise DatasetError(
            f"{path}: '{IMAGES}' is {kind} {shape}; float32 (maps, {len(CHANNELS)}, height, width) "
            "is required"
        )
    if rows != (shape[0], MOST_BOXES, BOX):
        raise DatasetError(
            f"{path}: '{BOXES}' is {rows}; {(shape[0], MOST_BOXES, BOX)} is required"
        )
    return Year(path, shape[0], (shape[2], shape[3], shape[1]))


@contextmanager
def opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """Give a file's maps and boxes. Raises DatasetError where they cannot be read."""
    import h5py  # Imported here, since only preparing needs it.

    try:
        with h5py.File(path, "r") as file:
            yield file[IMAGES], file[BOXES]
    except KeyError:
        raise DatasetError(f"{path} has no '{IMAGES}' and '{BOXES}'") from None
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {' '.join(str(error).split())}") from None


def sample_of(path: Path, images: Any, boxes: Any, number: int) -> Sample:  # noqa: ANN401
    """Return a map of an open file, checked. Raises DatasetError."""
    try:
        return samples.checked(images[number], boxes[number])
    except ValueError as error:
        raise DatasetError(f"{path}: map {number + 1}: {error}") from None
