"""Small datasets of real photographs, and sources that look like the official ones."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_images
from tests.fetch_photographs import NotAvailableError, fetch
from tests.support.cache import cached, unavailable

from aiperf_hpc.replica.data import imagenet
from aiperf_hpc.replica.data.staging import Options

WNIDS = ("n01440764", "n02084071", "n03000134")
ORIENTATION = 0x0112
"""The tag of Exif that says how an image is to be turned."""
TRAIN_EACH, VALIDATION_EACH = 9, 4

Photo = Callable[[int], Image.Image]


@pytest.fixture(scope="session")
def photo() -> Photo:
    """Return the n-th of many different cut-outs of two photographs, of differing shapes."""
    photos: list[NDArray[np.uint8]] = load_sample_images().images

    def cut(number: int) -> Image.Image:
        whole = photos[number % 2]
        top, left = 7 * number % 200, 11 * number % 300
        height, width = 60 + 13 * number % 90, 60 + 29 * number % 150
        return Image.fromarray(whole[top : top + height, left : left + width])

    return cut


def jpeg(image: Image.Image, **options: object) -> bytes:
    content = io.BytesIO()
    image.save(content, "JPEG", quality=95, **options)
    return content.getvalue()


def png(image: Image.Image) -> bytes:
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def _odd_images(photo: Photo) -> list[bytes]:
    """What the real ImageNet has too: grey, CMYK and PNG files, and images of odd shapes; files
    that say that they are to be turned, progressive ones, and others with something behind them."""
    turned = Image.Exif()
    turned[ORIENTATION] = 6
    return [
        jpeg(photo(7), exif=turned),
        jpeg(photo(8), progressive=True, subsampling=1),
        jpeg(photo(9)) + bytes(100),
        jpeg(photo(1).convert("L")),
        jpeg(photo(2).convert("CMYK")),
        png(photo(3)),
        jpeg(photo(4).resize((1, 1))),
        jpeg(photo(5).resize((3, 200))),
        jpeg(photo(6).resize((4000, 2))),
    ]


@pytest.fixture
def make_source(photo: Photo) -> Callable[[Path], Path]:
    """Write a little ImageNet in the official layout, and return its folder."""
    return lambda folder: _write_source(folder, photo)


def _write_source(folder: Path, photo: Photo) -> Path:
    odd, number = _odd_images(photo), 0
    for part, each in (("train", TRAIN_EACH), ("val", VALIDATION_EACH)):
        for label, wnid in enumerate(WNIDS):
            (folder / part / wnid).mkdir(parents=True)
            for place in range(each):
                content = odd.pop() if odd and place % 4 == 1 else jpeg(photo(number))
                number += 1
                # Named as the official images are; those of validation go through all classes.
                name = f"{wnid}_{number}" if part == "train" else _official(place, label)
                (folder / part / wnid / f"{name}.JPEG").write_bytes(content)
    return folder


def _official(place: int, label: int) -> str:
    return f"ILSVRC2012_val_{1 + place * len(WNIDS) + label:08d}"


@pytest.fixture(scope="session")
def imagenet_source(photo: Photo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A little ImageNet in the official layout. Not to be changed."""
    return _write_source(tmp_path_factory.mktemp("imagenet") / "source", photo)


@pytest.fixture(scope="session")
def imagenet_folder(imagenet_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, prepared in four shards. Not to be changed."""
    folder = tmp_path_factory.mktemp("imagenet") / "prepared"
    imagenet.prepare(imagenet_source, folder, Options(shards=4, cores=2))
    return folder


@pytest.fixture(scope="session")
def photographs() -> list[bytes]:
    """20 photographs of ImageNet, true JPEG files, fetched once and kept in the cache.

    Without a package index the test is skipped; where the environment variable CI is set it fails.
    """
    try:
        folder = cached("photographs", fetch)
    except NotAvailableError as error:
        unavailable(f"photographs of ImageNet are not available: {error}")
    return [path.read_bytes() for path in sorted(folder.iterdir())]
