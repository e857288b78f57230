"""Records of labeled images, and the formats of the images in them.

A record is a ``tf.train.Example`` with the image file, its label and its name. Formats:

- ``jpeg``: a gray or RGB JPEG file unchanged; any other file as RGB JPEG file of the same pixels.
- ``resized``: the same if the shorter side has at most ``SIDE`` pixels; else a JPEG file of the
  image resized to this side by the antialiased bilinear filter of torchvision's ``Resize``.
- ``raw``: the pixels that ``resized`` would encode, as a binary PPM file.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from aiperf_hpc.errors import raising, reason_of
from aiperf_hpc.replica.data.tfrecord import example, features_of, of_bytes, of_integer
from aiperf_hpc.trial import StorageFormat

if TYPE_CHECKING:
    from PIL import Image

SIDE: Final = 256
"""Shorter side of a resized image in pixels."""
PPM_HEADER: Final = b"P6\n%05d %05d\n255\n"
"""Header of a raw image with its width and height, of fixed length."""
PPM_SIZE: Final = len(PPM_HEADER % (0, 0))

_KEPT_FORMATS = ("JPEG", "MPO")
_KEPT_MODES = ("RGB", "L")
_READABLE_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM")
_QUALITY = 95
_SCAN, _END = b"\xff\xda", b"\xff\xd9"
"""Markers in a JPEG file: before and after the pixels."""


_ENCODED, _LABEL, _NAME = b"image/encoded", b"image/class/label", b"image/filename"


class LabelledImage(NamedTuple):
    """The content of a record."""

    encoded: bytes
    label: int
    name: str


def pack(image: LabelledImage) -> bytes:
    """Return a labeled image as a serialized ``tf.train.Example``."""
    name = image.name.encode("utf-8", "surrogateescape")
    return example(
        {_ENCODED: of_bytes(image.encoded), _LABEL: of_integer(image.label), _NAME: of_bytes(name)}
    )


def unpack(content: bytes) -> LabelledImage:
    """Return the image of a serialized ``tf.train.Example``.

    Raises:
        ValueError: the content is not an example or lacks one of the features.
    """
    none = ValueError("a record contains no labeled image")
    with raising(none, ValueError, KeyError, IndexError):
        found = features_of(content)
        encoded, label = found[_ENCODED].as_bytes(), found[_LABEL].as_integer()
        name = found[_NAME].as_bytes()
    return LabelledImage(bytes(encoded), label, bytes(name).decode("utf-8", "surrogateescape"))


def encode(file: bytes, storage_format: StorageFormat = "jpeg") -> tuple[bytes, str | None]:
    """Return the stored form of an image file, and its format if it was converted to a JPEG file.

    Encoding a stored form returns it unchanged. The image is decoded completely. The Exif
    orientation is ignored, here and by the readers.

    Raises:
        ValueError: the file is not an image or is corrupt.
    """
    with _opened(file) as image:
        kept = image.format in _KEPT_FORMATS and image.mode in _KEPT_MODES
        if kept and file.rfind(_END) < file.rfind(_SCAN):
            raise ValueError("it has no end; TensorFlow would refuse it")
        if storage_format == "raw":
            return _as_ppm(_smaller(image)), None
        if storage_format == "resized" and min(image.size) > SIDE:
            return _as_jpeg(_smaller(image)), None
        if kept:
            return file, None
        kind = f"{image.mode} JPEG" if image.format in _KEPT_FORMATS else str(image.format)
        return _as_jpeg(image), kind


def stored_bytes(file_size: int, storage_format: StorageFormat) -> int:
    """Return the approximate maximum number of bytes in a shard for an image file of a size.

    Raw pixels need about ten times the space of a JPEG file, and at most the space of a resized
    image with aspect ratio 4:3.
    """
    return file_size if storage_format != "raw" else min(10 * file_size, SIDE * SIDE * 4)


@contextmanager
def _opened(file: bytes) -> Iterator[Image.Image]:
    """Provide a decoded image. Raises ValueError."""
    from PIL import Image, UnidentifiedImageError  # needed only in preparation

    try:
        with Image.open(io.BytesIO(file), formats=_READABLE_FORMATS) as image:
            image.load()
            yield image
    except UnidentifiedImageError:
        raise ValueError("it is not an image") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(reason_of(error)) from None


def _as_jpeg(image: Image.Image) -> bytes:
    encoded = io.BytesIO()
    image.convert("RGB").save(encoded, "JPEG", quality=_QUALITY, subsampling=0)
    return encoded.getvalue()


def _as_ppm(image: Image.Image) -> bytes:
    header = PPM_HEADER % image.size
    if len(header) > PPM_SIZE:
        raise ValueError("it has a side of more than 99,999 pixels")
    return header + image.convert("RGB").tobytes()


def _smaller(image: Image.Image) -> Image.Image:
    """Return the image with a shorter side of at most ``SIDE`` pixels and the same aspect ratio."""
    from PIL import Image

    shorter = min(image.size)
    if shorter <= SIDE:
        return image
    width, height = (SIDE * length // shorter for length in image.size)
    return image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
