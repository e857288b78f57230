"""One map with its mask as a shard stores it: what a network reads, in a TFRecord's record.

The record's content is the sizes, three uint32 (height, width, channels), the scaled fields,
float32 in C order, and the mask, a byte a cell; little-endian.
"""

from __future__ import annotations

import hashlib
import io
import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.data.tfrecord import Buffer, only_record, write_record
from aiperf_hpc.trial import DatasetInfo

NAME = "deepcam"
CLASSES = 3
_SIZES = struct.Struct("<3I")
_FIELDS = np.dtype("<f4")

Floats = NDArray[np.float32]
Mask = NDArray[np.uint8]


class Sample(NamedTuple):
    """Scaled fields, (height, width, channels), and the class of each cell, (height, width)."""

    fields: Floats
    mask: Mask

    @property
    def content(self) -> bytes:
        """What is stored of it."""
        sizes = _SIZES.pack(*self.fields.shape)
        return sizes + self.fields.astype(_FIELDS, copy=False).tobytes() + self.mask.tobytes()


def written(sample: Sample) -> bytes:
    """Return the TFRecord file of a sample."""
    file = io.BytesIO()
    write_record(file, sample.content)
    return file.getvalue()


def read(file: Buffer) -> Sample:
    """Return the sample of a TFRecord file, checked.

    Raises:
        ValueError: it is damaged, or holds no such sample; what is wrong, in words.
    """
    content = _content(file)
    height, width, channels = _SIZES.unpack_from(content)
    cells = height * width
    end = _SIZES.size + cells * channels * _FIELDS.itemsize
    if len(content) != end + cells:
        raise ValueError(f"a map of {height} x {width} x {channels} has not {len(content)} bytes")
    fields = np.frombuffer(content[_SIZES.size : end], _FIELDS).astype(np.float32, copy=False)
    mask = np.frombuffer(content[end:], np.uint8)
    return Sample(fields.reshape(height, width, channels), mask.reshape(height, width))


def sha256_of(content: Buffer) -> str:
    """Return the SHA-256 of a sample: of what is stored of it."""
    return hashlib.sha256(content).hexdigest()


def _content(file: Buffer) -> memoryview:
    content = only_record(file)
    if len(content) < _SIZES.size:
        raise ValueError("it holds no map")
    return content


class DeepCAMCodec:
    """See ``sharded.dataset.Codec``."""

    name = NAME

    def empty(self, info: DatasetInfo, number: int) -> Batch:
        height, width, channels = info.input_shape("image")
        return Batch(
            {"image": np.empty((number, height, width, channels), np.float32)},
            {"mask": np.empty((number, height, width), np.int32)},
        )

    def decode(self, content: memoryview, batch: Batch, at: int) -> None:
        sample, images = read(content), batch.inputs["image"]
        if sample.fields.shape != images.shape[1:]:
            raise ValueError(f"a map of {sample.fields.shape}, not {images.shape[1:]}")
        images[at] = sample.fields
        batch.targets["mask"][at] = sample.mask

    def sha256(self, content: memoryview) -> str:
        return sha256_of(_content(content))
