"""Images in the formats that a dataset's shards store.

- ``jpeg``: a gray or RGB JPEG file as it is; any other file as an RGB JPEG file of the same pixels.
- ``resized``: the same if the shorter side has at most ``SIDE`` pixels; else a JPEG file of the
  image resized to that, by the antialiased bilinear filter of torchvision's ``Resize``.
- ``raw``: the pixels that ``resized`` would encode, as a binary PPM file.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from aiperf_hpc.trial import Stored

if TYPE_CHECKING:
    from PIL import Image

SIDE: Final = 256
"""The shorter side of a resized image, in pixels."""
PPM_HEADER: Final = b"P6\n%05d %05d\n255\n"
"""The header of a raw image, with its width and height; always of the same length."""
PPM_SIZE: Final = len(PPM_HEADER % (0, 0))

_KEPT_FORMATS = ("JPEG", "MPO")
_KEPT_MODES = ("RGB", "L")
_READABLE_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM")
_QUALITY = 95
_SCAN, _END = b"\xff\xda", b"\xff\xd9"
"""Markers in a JPEG file: before the pixels, and behind them."""


def encode(file: bytes, stored: Stored = "jpeg") -> tuple[bytes, str | None]:
    """Return what is stored of an image file, and what it was if it was converted to a JPEG file.

    What is stored is stored unchanged again. The image is decoded to its last line. Exif's
    orientation is ignored, here and when it is read.

    Raises:
        ValueError: it is not an image, or a corrupt one.
    """
    with _opened(file) as image:
        kept = image.format in _KEPT_FORMATS and image.mode in _KEPT_MODES
        if kept and file.rfind(_END) < file.rfind(_SCAN):
            raise ValueError("it has no end; TensorFlow would refuse it")
        if stored == "raw":
            return _as_ppm(_smaller(image)), None
        if stored == "resized" and min(image.size) > SIDE:
            return _as_jpeg(_smaller(image)), None
        if kept:
            return file, None
        kind = f"{image.mode} JPEG" if image.format in _KEPT_FORMATS else str(image.format)
        return _as_jpeg(image), kind


def stored_bytes(file_size: int, stored: Stored) -> int:
    """Return how many bytes an image file of a size takes at most when it is stored, roughly.

    Pixels take about ten times the room of their JPEG file, and no more than a resized image of
    the proportions 4:3 has.
    """
    return file_size if stored != "raw" else min(10 * file_size, SIDE * SIDE * 4)


@contextmanager
def _opened(file: bytes) -> Iterator[Image.Image]:
    """Give a decoded image. Raises ValueError."""
    from PIL import Image, UnidentifiedImageError  # needed in preparation only

    try:
        with Image.open(io.BytesIO(file), formats=_READABLE_FORMATS) as image:
            image.load()
            yield image
    except UnidentifiedImageError:
        raise ValueError("it is no image") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(" ".join(str(error).split())) from None


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
    """Return an image whose shorter side has at most ``SIDE`` pixels, in its proportions."""
    from PIL import Image

    shorter = min(image.size)
    if shorter <= SIDE:
        return image
    width, height = (SIDE * length // shorter for length in image.size)
    return image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
