"""Labelled images as the examples of TFRecord files."""

from __future__ import annotations

from typing import NamedTuple

from aiperf_hpc.replica.data.tfrecord import example, features_of, of_bytes, of_integer

_ENCODED, _LABEL, _NAME = b"image/encoded", b"image/class/label", b"image/filename"


class LabelledImage(NamedTuple):
    """The content of a record."""

    encoded: bytes
    label: int
    name: str


def pack(image: LabelledImage) -> bytes:
    """Return an image as a serialized ``tf.train.Example``."""
    name = image.name.encode("utf-8", "surrogateescape")
    return example(
        {_ENCODED: of_bytes(image.encoded), _LABEL: of_integer(image.label), _NAME: of_bytes(name)}
    )


def unpack(content: bytes) -> LabelledImage:
    """Return the image of a serialized ``tf.train.Example``.

    Raises:
        ValueError: it is none, or has not what these shards hold.
    """
    try:
        found = features_of(content)
        encoded, label = found[_ENCODED].as_bytes(), found[_LABEL].as_integer()
        name = found[_NAME].as_bytes()
    except (ValueError, KeyError, IndexError):
        raise ValueError("a record holds no labelled image") from None
    return LabelledImage(bytes(encoded), label, bytes(name).decode("utf-8", "surrogateescape"))
