"""A little ImageNet of real photographs, in the official layout of folders."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_images

WNIDS = ("n01440764", "n02084071", "n03000134")
ORIENTATION = 0x0112
"""The tag of Exif that says how an image is to be turned."""
TRAIN_EACH, VALIDATION_EACH = 9, 4


@cache
def _photographs() -> list[NDArray[np.uint8]]:
    images: list[NDArray[np.uint8]] = load_sample_images().images
    return images


def cut_out(number: int) -> Image.Image:
    """Return the n-th of many different cut-outs of two photographs, of differing shapes."""
    whole = _photographs()[number % 2]
    top, left = 7 * number % 200, 11 * number % 300
    height, width = 60 + 13 * number % 90, 60 + 29 * number % 150
    return Image.fromarray(whole[top : top + height, left : left + width])


def jpeg(image: Image.Image, **options: object) -> bytes:
    content = io.BytesIO()
    image.save(content, "JPEG", quality=95, **options)
    return content.getvalue()


def png(image: Image.Image) -> bytes:
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def _odd_images() -> list[bytes]:
    """What the real ImageNet has too: grey, CMYK and PNG files, and images of odd shapes; files
    that say that they are to be turned, progressive ones, and others with something behind them."""
    turned = Image.Exif()
    turned[ORIENTATION] = 6
    return [
        jpeg(cut_out(7), exif=turned),
        jpeg(cut_out(8), progressive=True, subsampling=1),
        jpeg(cut_out(9)) + bytes(100),
        jpeg(cut_out(1).convert("L")),
        jpeg(cut_out(2).convert("CMYK")),
        png(cut_out(3)),
        jpeg(cut_out(4).resize((1, 1))),
        jpeg(cut_out(5).resize((3, 200))),
        jpeg(cut_out(6).resize((4000, 2))),
    ]


def write_source(folder: Path) -> Path:
    """Write the images into a new folder and return it."""
    odd, number = _odd_images(), 0
    for part, each in (("train", TRAIN_EACH), ("val", VALIDATION_EACH)):
        for label, wnid in enumerate(WNIDS):
            (folder / part / wnid).mkdir(parents=True)
            for place in range(each):
                content = odd.pop() if odd and place % 4 == 1 else jpeg(cut_out(number))
                number += 1
                # Named as the official images are; those of validation go through all classes.
                name = f"{wnid}_{number}" if part == "train" else _official(place, label)
                (folder / part / wnid / f"{name}.JPEG").write_bytes(content)
    return folder


def _official(place: int, label: int) -> str:
    return f"ILSVRC2012_val_{1 + place * len(WNIDS) + label:08d}"


def content_of(folder: Path) -> dict[str, bytes]:
    """Return the content of each file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
