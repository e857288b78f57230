"""CosmoFlow's volumes of MLPerf HPC: particle counts in cells, and the simulation's parameters.

A sample is a TFRecord file of one example, plain or compressed by GZIP: ``x``, int16 in C order,
(side, side, side, 4) with a redshift in each channel, and ``y``, four numbers scaled to [-1, 1].
Shards store the files as they are. A network reads ln(1 + x).
[mlcommons/hpc, cosmoflow/data/cosmo.py and prepare.py]
"""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from aiperf_hpc.errors import raising
from aiperf_hpc.replica.data.base import Batch, Floats
from aiperf_hpc.replica.data.sharded import dataset, preparation
from aiperf_hpc.replica.data.tfrecord import Buffer, features_of, only_record
from aiperf_hpc.trial import TensorSpec

NAME = "cosmoflow"
REDSHIFTS, PARAMETERS = 4, 4
"""Number of channels of a volume, and number of its parameters."""
MOST_BYTES = 1 << 30
"""Maximum size of a sample in bytes: 500 cells per side. An official one has 16.8 million."""
RANGE = 1.2
"""Largest parameter that the network can predict; the official parameters lie in [-1, 1]."""
_GZIP_MAGIC, _GZIP = b"\x1f\x8b\x08", 31
_PIECE = 1 << 16
"""Number of bytes of a compressed file that are decompressed at a time."""
_X, _Y = b"x", b"y"
_STORED = np.dtype("<i2")

Counts = NDArray[np.int16]


class Sample(NamedTuple):
    """A volume of counts, (side, side, side, 4), and its parameters, (4,)."""

    counts: Counts
    parameters: Floats

    @property
    def sha256(self) -> str:
        """SHA-256 of the numbers, little-endian, independent of the file format."""
        content = (self.counts.astype(_STORED, copy=False), self.parameters.astype("<f4"))
        digest = hashlib.sha256()
        for array in content:
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def is_compressed(file: Buffer) -> bool:
    """Return whether a file is compressed by GZIP.

    A record that begins with these bytes has 559,903 bytes plus a multiple of 16 MiB, a size that
    no sample has.
    """
    return file[:3] == _GZIP_MAGIC


def read_sample(file: Buffer) -> Sample:
    """Return the validated sample of a TFRecord file, plain or compressed.

    Raises:
        ValueError: the file is damaged or contains no such sample.
    """
    plain = _decompressed(file) if is_compressed(file) else file
    features = features_of(only_record(plain))
    if not {_X, _Y} <= features.keys():
        raise ValueError("it has no volume: an example of the features x and y is expected")
    with raising(ValueError("its volume x is not stored as bytes"), ValueError):
        x = features[_X].as_bytes()
    numbers = "its parameters y are not stored as floating point numbers"
    with raising(ValueError(numbers), ValueError):
        y = features[_Y].as_floats()
    return Sample(_counts(x), _parameters(y))


def logarithms(counts: Counts, out: Floats) -> None:
    """Write ln(1 + counts) from a table of the 32,768 possible counts, which are at least 0."""
    places, found = counts.view(np.uint16).reshape(-1), out.reshape(-1)
    for start in range(0, len(places), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        np.take(_TABLE, places[chunk], out=found[chunk], mode="clip")


_CHUNK = 1 << 16
"""Number of counts per step: numpy converts indices to 64 bits, which should fit into a cache."""
_TABLE = np.log1p(np.arange(1 << 15, dtype=np.float64)).astype(np.float32)


def _decompressed(file: Buffer) -> memoryview:
    """Return the content of a compressed file, whose last four bytes are its size.

    ISA-L uses half of zlib's time. One array needs less new memory than ``bytes``, and the kernel
    clears new memory page by page.

    Raises:
        ValueError: the content is damaged or too large.
    """
    compressed, reader, size = memoryview(file), isal_zlib.decompressobj(_GZIP), 0
    content = np.empty(min(int.from_bytes(compressed[-4:], "little"), MOST_BYTES), np.uint8)
    for start in range(0, len(compressed), _PIECE):
        try:
            piece = reader.decompress(compressed[start : start + _PIECE])
        except isal_zlib.IsalError as error:  # type: ignore[misc]  # Its stub is wrong.
            raise ValueError(f"it is damaged: {error}") from None
        size += len(piece)
        if size > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        if size > len(content):  # The last four bytes are not the size of the content.
            content = np.resize(content, 2 * size)
        content.data[size - len(piece) : size] = piece
        if reader.eof:
            behind = len(reader.unused_data) + len(compressed[start + _PIECE :])
            if behind:
                raise ValueError(f"it has {behind} bytes after its compressed content")
            return content[:size].data
    raise ValueError("it is truncated: its compressed content has no end")


def _counts(content: memoryview) -> Counts:
    side = _side(len(content), _STORED.itemsize)
    if side is None:
        wide = _side(len(content), 4)
        hint = f"; as float32 it would be one of {wide}, the other variant" if wide else ""
        raise ValueError(
            f"its volume has {len(content)} bytes, no cube of {REDSHIFTS} channels in int16{hint}"
        )
    counts = np.frombuffer(content, _STORED).astype(np.int16, copy=False)
    if counts.size and counts.min() < 0:
        raise ValueError(f"its volume has the count {counts.min()}; counts cannot be negative")
    return counts.reshape(side, side, side, REDSHIFTS)


def _side(size: int, each: int) -> int | None:
    """Return the side of a cube with this number of bytes, or None if there is none."""
    side = round((size / (each * REDSHIFTS)) ** (1 / 3))
    return side if side and side**3 * REDSHIFTS * each == size else None


def _parameters(values: tuple[float, ...]) -> Floats:
    if len(values) != PARAMETERS:
        raise ValueError(f"it has {len(values)} parameters, not {PARAMETERS}")
    parameters = np.array(values, np.float32)
    if not np.isfinite(parameters).all():
        raise ValueError(f"one of its parameters is {values}, not finite")
    if np.abs(parameters).max() > RANGE:
        worst = parameters[np.abs(parameters).argmax()]
        raise ValueError(f"its parameter {worst:g} is not scaled to [-1, 1]")
    return parameters


class CosmoFlowCodec:
    """The format of volumes; see ``sharded.dataset.Codec``."""

    name = NAME

    def decode(self, content: memoryview, batch: Batch, at: int) -> None:
        sample, volumes = read_sample(content), batch.inputs["volume"]
        if sample.counts.shape != volumes.shape[1:]:
            raise ValueError(f"a volume of {sample.counts.shape}, not {volumes.shape[1:]}")
        logarithms(sample.counts, volumes[at])
        batch.targets["values"][at] = sample.parameters

    def sha256(self, content: memoryview) -> str:
        return read_sample(content).sha256


class CosmoFlowFiles(preparation.FileSource):
    """The official files, compressed or plain."""

    dataset = NAME
    noun = "volumes"
    pattern = "*.tfrecord*"
    shard_samples = 64  # Each simulated universe was cut into this number of samples.

    def load(self, path: Path) -> preparation.LoadedSample:
        content = path.read_bytes()
        sample = read_sample(content)
        shape = sample.counts.shape
        form = "GZIP" if is_compressed(content) else "not compressed"
        kind = preparation.SampleKind(
            f"{' x '.join(map(str, shape))}, {form}",
            {"volume": TensorSpec(shape=shape)},
            {"values": TensorSpec(shape=(PARAMETERS,))},
        )
        return preparation.LoadedSample(content, sample.sha256, kind)


load = partial(dataset.load, CosmoFlowCodec())
prepare = partial(preparation.prepare_shards, CosmoFlowFiles)
verify = partial(dataset.verify, CosmoFlowCodec())
