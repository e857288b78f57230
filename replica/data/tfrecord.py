"""TFRecord files and the examples in them, without TensorFlow.

A file is a sequence of records: length (uint64), checksum of the length (uint32), content, checksum
of the content; little-endian. Checksums are CRC-32C, masked as in TensorFlow's
``record_writer.cc``. The content is a ``tf.train.Example``: a protocol buffer with a map from names
to values. Only the values in shards of the supported datasets are implemented: bytes, an integer or
floating point numbers.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import google_crc32c
import numpy as np

from aiperf_hpc.errors import raising

_LENGTH, _CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")
_HEADER = _LENGTH.size + _CHECKSUM.size
OVERHEAD = _HEADER + _CHECKSUM.size
"""Number of bytes of a record in addition to its content."""

_VARINT, _BYTES, _FIXED32 = 0, 2, 5
"""Wire types of a protocol buffer's fields."""
_BYTES_LIST, _FLOAT_LIST, _INTEGER_LIST = 1, 2, 3
"""The fields of a ``tf.train.Feature``."""

Buffer = bytes | memoryview
AnyBuffer = TypeVar("AnyBuffer", bytes, memoryview)


class Feature(NamedTuple):
    """A serialized value of an example."""

    kind: int
    listed: memoryview

    def as_bytes(self) -> memoryview:
        """Return the bytes. Raises ValueError unless the feature is a single bytes value."""
        return _value(self._of(_BYTES_LIST))

    def as_integer(self) -> int:
        """Return the integer. Raises ValueError unless the feature is a single integer."""
        return _read_varint(_value(self._of(_INTEGER_LIST)), 0)[0]

    def as_floats(self) -> tuple[float, ...]:
        """Return the numbers. Raises ValueError unless the feature is a list of floats."""
        content = b"".join(value for _, value in _fields(self._of(_FLOAT_LIST)))
        if len(content) % 4:
            raise ValueError("a list of numbers is truncated")
        return struct.unpack(f"<{len(content) // 4}f", content)

    def _of(self, kind: int) -> memoryview:
        if self.kind != kind:
            raise ValueError("a value of another type")
        return self.listed


def write_record(file: BinaryIO, content: bytes) -> None:
    """Append a record. Raises OSError."""
    length = _LENGTH.pack(len(content))
    file.write(length + _masked(length))
    file.write(content)
    file.write(_masked(content))


def read_record(file: int, offset: int, size: int) -> bytes:
    """Return the content of the record of ``size`` bytes at ``offset`` of an open file.

    Raises:
        ValueError: there is no such record, or the record is damaged.
    """
    record = os.pread(file, size, offset)
    header, length = record[:_HEADER], record[: _LENGTH.size]
    begins = length + _masked(length) == header and _LENGTH.unpack(length)[0] == size - OVERHEAD
    if len(record) == size and not begins:
        raise ValueError(f"there is no record of {size} bytes at byte {offset}")
    return _content(record, size, offset)


def damage(path: Path) -> str | None:
    """Return the first problem with the records of a file, or None. Raises OSError."""
    with path.open("rb") as file:
        try:
            for _ in contents(file.fileno()):
                pass
        except ValueError as error:
            return str(error)
    return None


def contents(file: int) -> Iterator[bytes]:
    """Yield the content of each record of an open file after checking it.

    Raises:
        ValueError: a record is truncated or damaged.
    """
    offset = 0
    while header := os.pread(file, _HEADER, offset):
        size = _size(header, offset)
        yield read_record(file, offset, size)
        offset += size


def records(file: Buffer) -> Iterator[memoryview]:
    """Yield the content of each record of a file in memory. Raises ValueError like ``contents``."""
    view, offset = memoryview(file), 0
    while offset < len(view):
        size = _size(bytes(view[offset : offset + _HEADER]), offset)
        yield _content(view[offset : offset + size], size, offset)
        offset += size


def only_record(file: Buffer) -> memoryview:
    """Return the content of a one-record file. Raises ValueError unless it is one intact record."""
    found = list(records(file))
    if len(found) != 1:
        raise ValueError(f"it has {len(found)} records, not 1")
    return found[0]


def _content(record: AnyBuffer, size: int, offset: int) -> AnyBuffer:
    """Return the content of a record of ``size`` bytes. Raises ValueError unless it is intact."""
    if len(record) < size:
        raise ValueError(f"it ends within the record at byte {offset}")
    content = record[_HEADER : -_CHECKSUM.size]
    if _masked(content) != record[-_CHECKSUM.size :]:
        raise ValueError(f"the record at byte {offset} is damaged: its checksum differs")
    return content


def _size(header: bytes, offset: int) -> int:
    """Return the size in bytes of a record with this header. Raises ValueError."""
    if len(header) < _HEADER:
        raise ValueError(f"it ends within the record at byte {offset}")
    length = header[: _LENGTH.size]
    if length + _masked(length) != header:
        raise ValueError(f"the record at byte {offset} is damaged: its checksum differs")
    return int(_LENGTH.unpack(length)[0]) + OVERHEAD


def example(features: Mapping[bytes, bytes]) -> bytes:
    """Return a serialized ``tf.train.Example`` of features created by the functions below."""
    entries = (_field(1, _field(1, key) + _field(2, value)) for key, value in features.items())
    return _field(1, b"".join(entries))


def of_bytes(value: bytes) -> bytes:
    """Return a feature with a single bytes value."""
    return _field(_BYTES_LIST, _field(1, value))


def of_integer(value: int) -> bytes:
    """Return a feature with a single non-negative integer."""
    return _field(_INTEGER_LIST, _field(1, _varint(value)))


def features_of(content: Buffer) -> dict[bytes, Feature]:
    """Return the features of a serialized ``tf.train.Example`` by their names.

    Raises:
        ValueError: the content is not an example.
    """
    found: dict[bytes, Feature] = {}
    with raising(ValueError("a record contains no example"), ValueError, IndexError):
        for entry in _values(_value(memoryview(content))):
            key, value = _values(entry)
            ((kind, listed),) = _fields(value)
            found[bytes(key)] = Feature(kind, listed)
    return found


def _masked(content: Buffer) -> bytes:
    # The library accepts bytes and arrays, but not a memoryview.
    whole = content if isinstance(content, bytes) else np.asarray(content)
    checksum = google_crc32c.value(whole)
    rotated = (checksum >> 15) | (checksum << 17)
    return _CHECKSUM.pack((rotated + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(number: int) -> bytes:
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def _read_varint(content: Buffer, place: int) -> tuple[int, int]:
    """Return the number at a position and the position after it."""
    number = shift = 0
    while True:
        byte = content[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
        shift += 7


def _fields(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the number and the value of each field; numeric values remain encoded."""
    place = 0
    while place < len(content):
        tag, start = _read_varint(content, place)
        wire = tag & 7
        if wire == _VARINT:
            _, place = _read_varint(content, start)
        elif wire == _FIXED32:
            place = start + 4
        elif wire == _BYTES:
            length, start = _read_varint(content, start)
            place = start + length
        else:
            raise ValueError("a field of another type")
        if place > len(content):
            raise ValueError("a field ends after the message")
        yield tag >> 3, content[start:place]


def _values(content: memoryview) -> list[memoryview]:
    return [value for _, value in sorted(_fields(content), key=lambda field: field[0])]


def _value(content: memoryview) -> memoryview:
    """Return the value of a message's only field."""
    (value,) = _values(content)
    return value
