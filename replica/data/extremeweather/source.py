"""The official files: what is in one, and one map of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiperf_hpc.errors import DatasetError, reason_of
from aiperf_hpc.replica.data import hdf5
from aiperf_hpc.replica.data.extremeweather import samples
from aiperf_hpc.replica.data.extremeweather.samples import BOX, NAME, Sample
from aiperf_hpc.replica.data.weather.boxes import CHANNELS, MOST_BOXES, NONE

IMAGES, BOXES = "images", "boxes"
PATTERN = "climo_*.h5"


@dataclass(frozen=True, slots=True)
class Year:
    """A file of maps."""

    path: Path
    maps: int
    shape: tuple[int, int, int]
    """(height, width, channels)."""
    boxes: int
    """Rows of boxes that are in use, in all maps."""


def years_of(folder: Path) -> list[Year]:
    """Return the files of a folder in the order of their names, all of maps of one shape.

    Raises:
        DatasetError: there are fewer than two, one is no such file, which is named, or there is no
            box in the last one, which is held out, or in all others.
    """
    hdf5.require_h5py()
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
    with opened(path) as (images, boxes):
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
def opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """Give a file's maps and boxes. Raises DatasetError where they cannot be read."""
    import h5py

    try:
        with hdf5.opened(path) as file:
            arrays = tuple(file.get(name) for name in (IMAGES, BOXES))
            if not all(isinstance(array, h5py.Dataset) for array in arrays):
                raise ValueError(f"it has no arrays '{IMAGES}' and '{BOXES}'")
            yield arrays
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def sample_of(path: Path, images: Any, boxes: Any, number: int) -> Sample:  # noqa: ANN401
    """Return a map of an open file, checked. Raises DatasetError."""
    try:
        with hdf5.reading():
            image, rows = images[number], boxes[number]
    except (OSError, ValueError) as error:
        raise _unreadable(f"map {number + 1} of {path}", error) from None
    try:
        return samples.checked(image, rows)
    except ValueError as error:
        raise DatasetError(f"{path}: map {number + 1}: {error}") from None


def _unreadable(what: object, error: OSError | ValueError) -> DatasetError:
    said = reason_of(error) if isinstance(error, OSError) else error
    return DatasetError(f"cannot read {what}: {said}")
