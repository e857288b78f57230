"""TFRecord files of labelled images, without TensorFlow.

A file is records one after the other: the length (uint64), its checksum (uint32), the content, the
content's checksum; little-endian, checksums by CRC-32C, masked as TensorFlow's ``record_writer.cc``
does. The content is a ``tf.train.Example``, of which only what these shards hold is understood
here: protocol buffers with a map from a name to one value, bytes or an integer.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import google_crc32c

_LENGTH, _CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")
_HEADER = _LENGTH.size + _CHECKSUM.size
OVERHEAD = _HEADER + _CHECKSUM.size
"""Bytes of a record around its content."""

_VARINT, _BYTES = 0, 2
"""Wire types of a protocol buffer's fields."""


class LabelledImage(NamedTuple):
    """The content of a record."""

    encoded: bytes
    label: int
    name: str


def write_record(file: BinaryIO, content: bytes) -> None:
    """Append a record. Raises OSError."""
    length = _LENGTH.pack(len(content))
    file.write(length + _masked(length))
    file.write(content)
    file.write(_masked(content))


def read_record(file: int, offset: int, size: int) -> bytes:
    """Return the content of the record of ``size`` bytes at ``offset`` of an open file.

    Raises:
        ValueError: there is no such record, or it is damaged.
    """
    record = os.pread(file, size, offset)
    if len(record) < size:
        raise ValueError(f"it ends within the record at byte {offset}")
    header, content, checksum = (
        record[:_HEADER],
        record[_HEADER : -_CHECKSUM.size],
        record[-_CHECKSUM.size :],
    )
    length = header[: _LENGTH.size]
    if length + _masked(length) != header or _LENGTH.unpack(length)[0] != len(content):
        raise ValueError(f"there is no record of {size} bytes at byte {offset}")
    if _masked(content) != checksum:
        raise ValueError(f"the record at byte {offset} is damaged: its checksum is another")
    return content


def scan(file: int) -> Iterator[int]:
    """Return the size of each record of an open file, all checked. Raises as ``contents``."""
    return (len(content) + OVERHEAD for content in contents(file))


def contents(file: int) -> Iterator[bytes]:
    """Yield the content of each record of an open file, all of them checked.

    Raises:
        ValueError: a record is cut or damaged.
    """
    offset = 0
    while header := os.pread(file, _HEADER, offset):
        if len(header) < _HEADER:
            raise ValueError(f"it ends within the record at byte {offset}")
        length = header[: _LENGTH.size]
        if length + _masked(length) != header:
            raise ValueError(f"the record at byte {offset} is damaged: its checksum is another")
        size = _LENGTH.unpack(length)[0] + OVERHEAD
        yield read_record(file, offset, size)
        offset += size


def pack(image: LabelledImage) -> bytes:
    """Return an image as a serialized ``tf.train.Example``."""
    name = image.name.encode("utf-8", "surrogateescape")
    features = (
        (b"image/encoded", _field(1, _field(1, image.encoded))),
        (b"image/class/label", _field(3, _field(1, _varint(image.label)))),
        (b"image/filename", _field(1, _field(1, name))),
    )
    entries = (_field(1, _field(1, key) + _field(2, value)) for key, value in features)
    return _field(1, b"".join(entries))


def unpack(content: bytes) -> LabelledImage:
    """Return the image of a serialized ``tf.train.Example``.

    Raises:
        ValueError: it is none, or has not what these shards hold.
    """
    try:
        values: dict[bytes, bytes | int] = {}
        for entry in _values(_value(content)):
            key, feature = _values(entry)
            values[key] = _feature(feature)
        encoded, label = values[b"image/encoded"], values[b"image/class/label"]
        name = values[b"image/filename"]
    except (ValueError, KeyError, IndexError, TypeError):
        raise ValueError("a record holds no labelled image") from None
    if not (isinstance(encoded, bytes) and isinstance(label, int) and isinstance(name, bytes)):
        raise ValueError("a record holds no labelled image")
    return LabelledImage(encoded, label, name.decode("utf-8", "surrogateescape"))


def _masked(content: bytes) -> bytes:
    checksum = google_crc32c.value(content)
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


def _read_varint(content: bytes, place: int) -> tuple[int, int]:
    """Return the number at a place and the place behind it."""
    number = shift = 0
    while True:
        byte = content[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
        shift += 7


def _fields(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the value of each field; a field that is a number is its varint."""
    place = 0
    while place < len(content):
        tag, start = _read_varint(content, place)
        if tag & 7 == _VARINT:
            _, place = _read_varint(content, start)
        elif tag & 7 == _BYTES:
            length, start = _read_varint(content, start)
            place = start + length
            if place > len(content):
                raise ValueError("a field ends behind the message")
        else:
            raise ValueError("a field of another type")
        yield tag >> 3, content[start:place]


def _values(content: bytes) -> list[bytes]:
    return [value for _, value in sorted(_fields(content), key=lambda field: field[0])]


def _value(content: bytes) -> bytes:
    """Return the value of a message's only field."""
    (value,) = _values(content)
    return value


def _feature(content: bytes) -> bytes | int:
    """Return the only value of a ``tf.train.Feature``."""
    ((kind, listed),) = _fields(content)
    value = _value(listed)
    return value if kind == 1 else _read_varint(value, 0)[0]
