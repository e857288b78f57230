"""DeepCAM's maps of MLPerf HPC: sixteen fields of a climate model, and each cell's class.

A sample is an HDF5 file of ``climate/data``, float32 (height, width, 16), and ``climate/labels_0``,
integers (height, width): 0 is the background, 1 a tropical cyclone, 2 an atmospheric river. A
network reads (x - min) / (max - min) of each field, by the bounds in ``stats.h5``.
[mlcommons/hpc, deepcam/src/deepCam/data/cam_hdf5_dataset.py]

Shards store the network's input. The content of a record is the sizes, three uint32 (height, width,
channels), the scaled fields, float32 in C order, and the mask, a byte per cell; little-endian. They
are read without h5py.
"""

from __future__ import annotations

import hashlib
import io
import struct
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.datasets import read_errors
from aiperf_hpc.errors import DatasetError, restated
from aiperf_hpc.replica.data import hdf5
from aiperf_hpc.replica.data.base import Batch, Floats
from aiperf_hpc.replica.data.sharded import dataset, preparation
from aiperf_hpc.replica.data.staging import Options
from aiperf_hpc.replica.data.tfrecord import Buffer, only_record, write_record
from aiperf_hpc.trial import TensorSpec

NAME = "deepcam"
CLASSES = 3
STATISTICS = "stats.h5"
"""Minimum and maximum of each field over all samples."""
MULTIPLE = 16
"""Divisor of height and width: the network reduces a map by a factor of 16."""
_DATA, _LABELS = "climate/data", "climate/labels_0"
_LEAST, _LARGEST = "climate/minval", "climate/maxval"
_SIZES = struct.Struct("<3I")
_FIELDS = np.dtype("<f4")

Mask = NDArray[np.uint8]


class Sample(NamedTuple):
    """Scaled fields, (height, width, channels), and the cells' classes, (height, width)."""

    fields: Floats
    mask: Mask

    @property
    def content(self) -> bytes:
        """Stored bytes of the sample."""
        sizes = _SIZES.pack(*self.fields.shape)
        return sizes + self.fields.astype(_FIELDS, copy=False).tobytes() + self.mask.tobytes()


def sample_file(sample: Sample) -> bytes:
    """Return the TFRecord file of a sample."""
    file = io.BytesIO()
    write_record(file, sample.content)
    return file.getvalue()


def read_sample(file: Buffer) -> Sample:
    """Return the validated sample of a TFRecord file.

    Raises:
        ValueError: the file is damaged or contains no such sample.
    """
    content = _content(file)
    height, width, channels = _SIZES.unpack_from(content)
    cells = height * width
    end = _SIZES.size + cells * channels * _FIELDS.itemsize
    if len(content) != end + cells:
        raise ValueError(
            f"a map of {height} x {width} x {channels} does not have {len(content)} bytes"
        )
    fields = np.frombuffer(content[_SIZES.size : end], _FIELDS).astype(np.float32, copy=False)
    mask = np.frombuffer(content[end:], np.uint8)
    return Sample(fields.reshape(height, width, channels), mask.reshape(height, width))


def _content(file: Buffer) -> memoryview:
    content = only_record(file)
    if len(content) < _SIZES.size:
        raise ValueError("it holds no map")
    return content


class DeepCAMCodec:
    """The format of maps; see ``sharded.dataset.Codec``."""

    name = NAME

    def decode(self, content: memoryview, batch: Batch, at: int) -> None:
        sample, images = read_sample(content), batch.inputs["image"]
        if sample.fields.shape != images.shape[1:]:
            raise ValueError(f"a map of {sample.fields.shape}, not {images.shape[1:]}")
        images[at] = sample.fields
        batch.targets["mask"][at] = sample.mask

    def sha256(self, content: memoryview) -> str:
        return hashlib.sha256(_content(content)).hexdigest()


class Bounds(NamedTuple):
    """Shifts and scales of the fields, each (channels,)."""

    shift: Floats
    scale: Floats


class DeepCAMFiles(preparation.FileSource):
    """The official files.

    Raises:
        DatasetError: also if ``stats.h5`` is missing or damaged, or h5py is not installed.
    """

    dataset = NAME
    noun = "maps"
    pattern = "*.h5"
    shard_samples = 8  # Half a gigabyte for official maps.

    def __init__(self, folder: Path, options: Options) -> None:
        hdf5.require_h5py()
        self._bounds = _bounds(folder / STATISTICS)
        super().__init__(folder, options)

    def load(self, path: Path) -> preparation.LoadedSample:
        with hdf5.opened(path) as file:
            fields, mask = _fields(hdf5.array_of(file, _DATA)), _mask(hdf5.array_of(file, _LABELS))
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
        kind = preparation.SampleKind(
            " x ".join(map(str, fields.shape)),
            {"image": TensorSpec(shape=fields.shape)},
            {"mask": TensorSpec(shape=mask.shape, dtype="int32")},
            CLASSES,
        )
        return preparation.LoadedSample(
            sample_file(sample), hashlib.sha256(sample.content).hexdigest(), kind
        )


def _bounds(path: Path) -> Bounds:
    """Read the shifts and scales of the fields. Raises DatasetError."""
    layout = f"the source is a folder with train/, validation/ and {STATISTICS}"
    damaged = restated(f"{path}", DatasetError, caught=ValueError)
    with damaged, read_errors(path, NAME, layout), hdf5.opened(path) as file:
        least, largest = (_numbers(hdf5.array_of(file, key)) for key in (_LEAST, _LARGEST))
    if least.ndim != 1 or least.shape != largest.shape or not (largest > least).all():
        raise DatasetError(
            f"{path}: {_LARGEST} must be above {_LEAST} for each of as many fields, got "
            f"{largest.shape} and {least.shape}"
        )
    with np.errstate(over="ignore"):
        scale = (1.0 / (largest - least)).astype(np.float32)
    if not np.isfinite(scale).all():
        raise DatasetError(f"{path}: {_LARGEST} is too close to {_LEAST} to scale a field by it")
    return Bounds(least.astype(np.float32), scale)


def _numbers(found: Any) -> Floats:  # noqa: ANN401 -- h5py has no types
    """Return all numbers of a dataset. Raises ValueError unless they are finite floats."""
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
        raise ValueError(f"{_LABELS} is {values.dtype} and has numbers that are not classes")
    if values.size and not 0 <= values.min() <= values.max() < CLASSES:
        worst = values.max() if values.max() >= CLASSES else values.min()
        raise ValueError(f"{_LABELS} has the class {worst:g}; there are 0 to {CLASSES - 1}")
    return values.astype(np.uint8)


load = partial(dataset.load, DeepCAMCodec())
prepare = partial(preparation.prepare_shards, DeepCAMFiles)
verify = partial(dataset.verify, DeepCAMCodec())
