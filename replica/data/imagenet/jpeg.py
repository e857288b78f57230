"""Images as they are stored: grey or RGB JPEG files that every reader decodes."""

from __future__ import annotations

import io

_KEPT_FORMATS = ("JPEG", "MPO")
_KEPT_MODES = ("RGB", "L")
_READABLE_FORMATS = ("JPEG", "PNG", "GIF", "BMP")
_QUALITY = 95
_SCAN, _END = b"\xff\xda", b"\xff\xd9"
"""Markers in a JPEG file: before the pixels, and behind them."""


def as_jpeg(encoded: bytes) -> tuple[bytes, str | None]:
    """Return an image as a grey or RGB JPEG file, and what it was if it was something else.

    It is decoded to its last line. How a file says that it is to be turned (Exif) is not looked
    at, here or when it is read.

    Raises:
        ValueError: it is no image, or a corrupt one.
    """
    from PIL import Image, UnidentifiedImageError  # needed in preparation only

    try:
        with Image.open(io.BytesIO(encoded), formats=_READABLE_FORMATS) as image:
            image.load()
            if image.format in _KEPT_FORMATS and image.mode in _KEPT_MODES:
                if encoded.rfind(_END) < encoded.rfind(_SCAN):
                    raise ValueError("it has no end; TensorFlow would refuse it")
                return encoded, None
            kind = f"{image.mode} JPEG" if image.format in _KEPT_FORMATS else str(image.format)
            converted = io.BytesIO()
            image.convert("RGB").save(converted, "JPEG", quality=_QUALITY, subsampling=0)
            return converted.getvalue(), kind
    except UnidentifiedImageError:
        raise ValueError("it is no image") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(" ".join(str(error).split())) from None
