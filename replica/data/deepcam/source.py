"""The official files: an HDF5 file a sample in ``train/`` and ``validation/``, and ``stats.h5``.

What is prepared of them is read without h5py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from aiperf_hpc.errors import DatasetError, reason_of
from aiperf_hpc.replica.data import hdf5
from aiperf_hpc.replica.data.deepcam.stored import (
    CLASSES,
    NAME,
    Floats,
    Mask,
    Sample,
    sha256_of,
    written,
)
from aiperf_hpc.replica.data.sharded.preparation import Loaded, prepare
from aiperf_hpc.replica.data.staging import Options
from aiperf_hpc.trial import DatasetInfo, TensorSpec

if TYPE_CHECKING:
    import h5py

STATISTICS = "stats.h5"
"""The least and the largest number of each field, over all samples."""
MULTIPLE = 16
"""Of which height and width are multiples: the network makes a map 16 times smaller."""
_DATA, _LABELS = "climate/data", "climate/labels_0"
_LEAST, _LARGEST = "climate/minval", "climate/maxval"


class Kind(NamedTuple):
    """What all samples of a dataset have in common."""

    shape: tuple[int, int, int]

    def __str__(self) -> str:
        return " x ".join(str(size) for size in self.shape)

    @property
    def inputs(self) -> dict[str, TensorSpec]:
        return {"image": TensorSpec(shape=self.shape)}

    @property
    def targets(self) -> dict[str, TensorSpec]:
        return {"mask": TensorSpec(shape=self.shape[:2], dtype="int32")}

    @property
    def classes(self) -> int:
        return CLASSES


class Bounds(NamedTuple):
    """What is scaled to 0, and by what: (channels,) each."""

    shift: Floats
    scale: Floats


class OfficialFiles:
    """See ``sharded.preparation.SourceFormat``."""

    name = NAME
    unit = "maps"
    pattern = "*.h5"
    shard_samples = 8
    """Half a gigabyte, of official maps."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds

    def load(self, path: Path) -> Loaded:
        with hdf5.opened(path) as file:
            fields, mask = _fields(_dataset(file, _DATA)), _mask(_dataset(file, _LABELS))
        if mask.shape != fields.shape[:2]:
            raise ValueError(f"its mask is of {mask.shape}, its fields of {fields.shape[:2]}")
        shift, scale = self._bounds
        if fields.shape[2] != len(shift):
            raise ValueError(f"it has {fields.shape[2]} fields, {STATISTICS} has {len(shift)}")
        with np.errstate(over="ignore"):
            scaled = scale * (fields.astype(np.float32, copy=False) - shift)
        if not np.isfinite(scaled).all():
            raise ValueError(f"{_DATA} has a number that is not finite once {STATISTICS} scales it")
        sample = Sample(scaled, mask)
        height, width, channels = fields.shape
        return Loaded(written(sample), sha256_of(sample.content), Kind((height, width, channels)))


def prepare_deepcam(source: Path, target: Path, options: Options | None = None) -> DatasetInfo:
    """Make the folder ``target`` of shards out of the official files; as ``sharded.prepare``.

    Raises:
        DatasetError: also where ``stats.h5`` is missing or damaged, or h5py is not installed.
    """
    hdf5.require_h5py()
    return prepare(OfficialFiles(_bounds(source / STATISTICS)), source, target, options)


def _bounds(path: Path) -> Bounds:
    """Return what fields are scaled by. Raises DatasetError."""
    try:
        with hdf5.opened(path) as file:
            least, largest = (_numbers(_dataset(file, key)) for key in (_LEAST, _LARGEST))
    except OSError as error:
        raise DatasetError(
            f"dataset '{NAME}': cannot read {path}: {reason_of(error)}; the source is a folder "
            f"with train/, validation/ and {STATISTICS}"
        ) from None
    except ValueError as error:
        raise DatasetError(f"{path}: {error}") from None
    if least.ndim != 1 or least.shape != largest.shape or not (largest > least).all():
        raise DatasetError(
            f"{path}: {_LARGEST} must be above {_LEAST} for each of as many fields, got "
            f"{largest.shape} and {least.shape}"
        )
    with np.errstate(over="ignore"):
        scale = (1.0 / (largest - least)).astype(np.float32)
    if not np.isfinite(scale).all():
        raise DatasetError(f"{path}: {_LARGEST} is too near to {_LEAST} to scale a field by it")
    return Bounds(least.astype(np.float32), scale)


def _dataset(file: h5py.File, name: str) -> Any:  # noqa: ANN401 -- h5py has no types
    import h5py

    found = file.get(name)
    if not isinstance(found, h5py.Dataset):
        raise ValueError(f"it has no dataset {name}")
    return found


def _numbers(found: Any) -> Floats:  # noqa: ANN401 -- h5py has no types
    """Return all numbers of a dataset. Raises ValueError where one is none."""
    name = found.name.removeprefix("/")
    if found.dtype.kind != "f":
        raise ValueError(f"{name} is {found.dtype}, not floating point")
    values = np.asarray(found[...])
    if not np.isfinite(values).all():
        raise ValueError(f"{name} has a number that is not finite")
    return values


def _fields(found: Any) -> Floats:  # noqa: ANN401 -- h5py has no types
    if found.ndim != 3:
        raise ValueError(f"{_DATA} is of {found.shape}, not (height, width, fields)")
    height, width, fields = found.shape
    if height < fields:
        raise ValueError(f"{_DATA} is of {found.shape}: the fields must be the last axis")
    if height % MULTIPLE or width % MULTIPLE:
        raise ValueError(
            f"{_DATA} is of {found.shape}: height and width must be multiples of {MULTIPLE}"
        )
    return _numbers(found)


def _mask(found: Any) -> Mask:  # noqa: ANN401 -- h5py has no types
    if found.dtype.kind not in "iufb":
        raise ValueError(f"{_LABELS} is {found.dtype}, not integers")
    values = np.asarray(found[...])
    if values.dtype.kind == "f" and not (values == np.rint(values)).all():
        raise ValueError(f"{_LABELS} is {values.dtype} and has numbers that are no classes")
    if values.size and not 0 <= values.min() <= values.max() < CLASSES:
        worst = values.max() if values.max() >= CLASSES else values.min()
        raise ValueError(f"{_LABELS} has the class {worst:g}; there are 0 to {CLASSES - 1}")
    return values.astype(np.uint8)
