"""The formats in which a prepared folder stores images: read alike, verified, resumed."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images
from tests.replica.data.conftest import LeaveFree
from tests.support.imagenet_readers import (
    agree,
    both_readers,
    forge_shard,
    images_of,
    open_folder,
    pixels_of,
    stored_images,
)
from tests.support.imagenet_source import content_of, jpeg, png
from tests.support.refusals import refused

from aiperf_hpc.datasets import load_dataset_manifest
from aiperf_hpc.replica.data.__main__ import main
from aiperf_hpc.replica.data.base import Part
from aiperf_hpc.replica.data.imagenet.sources import prepare as prepare_imagenet
from aiperf_hpc.replica.data.imagenet.stored_image import encode
from aiperf_hpc.replica.data.imagenet.verification import verify_folder
from aiperf_hpc.replica.data.staging import Options
from aiperf_hpc.trial import StorageFormat

Folders = dict[StorageFormat, Path]

RESIZED: tuple[StorageFormat, ...] = ("resized", "raw")
SHARDS = 3


def _photo(number: int) -> Image.Image:
    """Return a cut-out of a photograph, 300 to 420 pixels wide and 270 to 390 high."""
    whole = load_sample_images().images[number % 2]
    width, height = 300 + 37 * number % 120, 270 + 53 * number % 120
    return Image.fromarray(whole[:height, 20 * number % 200 :][:, :width])


def _files() -> list[bytes]:
    """Photographs, most of them larger than a stored image; grey, CMYK, PNG and small ones."""
    return [
        *(jpeg(_photo(number)) for number in range(8)),
        jpeg(_photo(8), progressive=True, subsampling=2),
        jpeg(_photo(9).convert("L")),
        jpeg(_photo(10).convert("CMYK")),
        png(_photo(11)),
        jpeg(_photo(12).resize((80, 256))),
        jpeg(_photo(13).resize((1, 1))),
        png(_photo(14).resize((60, 40))),
        jpeg(_photo(15).resize((2000, 3))),
    ]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored") / "source"
    for part, files in (("train", _files()), ("val", _files()[::3])):
        for number, content in enumerate(files):
            path = folder / part / f"n{number % 2}" / f"{part}_{number}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def folders(source: Path) -> Folders:
    """The source, prepared in each format. Not to be changed."""
    made: Folders = {}
    for stored in ("jpeg", *RESIZED):
        made[stored] = source.parent / stored
        prepare_imagenet(source, made[stored], _options(stored))
    return made


def _options(stored: StorageFormat) -> Options:
    return Options(shards=SHARDS, storage_format=stored, cores=2)


@pytest.fixture(params=RESIZED)
def stored(request: pytest.FixtureRequest) -> StorageFormat:
    found: StorageFormat = request.param
    return found


@pytest.fixture
def copied(stored: StorageFormat, folders: Folders, tmp_path: Path) -> Path:
    """A folder of a format, to be changed."""
    return Path(shutil.copytree(folders[stored], tmp_path / "prepared"))


# What is stored


def _opened(encoded: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(encoded))
    image.load()
    return image


def test_raw_images_are_resized_as_by_torchvision(source: Path, folders: Folders) -> None:
    """The shorter side to 256 by Pillow's antialiased bilinear filter; small ones as they are."""
    for image in stored_images(folders["raw"], "train"):
        with Image.open(source / "train" / image.name) as file:
            wanted = file.convert("RGB")
        shorter = min(wanted.size)
        if shorter > 256:
            size = (int(256 * wanted.width / shorter), int(256 * wanted.height / shorter))
            wanted = wanted.resize(size, Image.Resampling.BILINEAR)
        found = _opened(image.encoded)
        assert found.format == "PPM"
        assert found.size == wanted.size
        assert found.tobytes() == wanted.tobytes()


def test_resized_images_have_the_pixels_of_raw_ones(source: Path, folders: Folders) -> None:
    raw = {image.name: image for image in stored_images(folders["raw"], "train")}
    kept = 0
    for image in stored_images(folders["resized"], "train"):
        found, pixels = _opened(image.encoded), _opened(raw[image.name].encoded)
        assert (found.format, found.size) == ("JPEG", pixels.size)
        difference = np.asarray(found.convert("RGB"), np.int16) - np.asarray(pixels)
        assert np.abs(difference).mean() < 2
        kept += image.encoded == (source / "train" / image.name).read_bytes()
    assert kept == 3  # of those that are small, all but the PNG file


def test_encoding_is_idempotent(stored: StorageFormat, folders: Folders) -> None:
    for image in stored_images(folders[stored], "validation"):
        assert encode(image.encoded, stored) == (image.encoded, None)


def test_an_image_too_long_for_the_header_is_refused() -> None:
    long = io.BytesIO()
    Image.new("RGB", (100_000, 1)).save(long, "PNG")
    with pytest.raises(ValueError, match="a side of more than 99,999 pixels"):
        encode(long.getvalue(), "raw")


# Reading


@pytest.mark.parametrize(("size", "part"), [(32, Part(1, 2)), (224, Part())])
def test_readers_agree(size: int, part: Part, stored: StorageFormat, folders: Folders) -> None:
    theirs, ours = both_readers(folders[stored], storage_format=stored, image_size=size)
    for epoch in range(2):
        agree(theirs.train(epoch, 4, 7, part), ours.train(epoch, 4, 7, part))
    agree(theirs.validation(4, part), ours.validation(4, part))


def test_raw_pixels_differ_between_readers_by_rounding(folders: Folders) -> None:
    """No decoder is in between, so that edges of crops are equal too."""
    theirs, ours = both_readers(folders["raw"], storage_format="raw", image_size=64)
    for one, other in zip(theirs.train(0, 4, 7), ours.train(0, 4, 7), strict=True):
        difference = pixels_of(one.inputs["image"]) - pixels_of(other.inputs["image"])
        assert np.abs(difference).max() < 0.51


def test_crops_are_equal_in_all_formats(stored: StorageFormat, folders: Folders) -> None:
    """Resized before it is cropped: other pixels, of the same part, class and order."""
    files = open_folder(folders["jpeg"], image_size=64)
    smaller = open_folder(folders[stored], storage_format=stored, image_size=64)
    for one, other in zip(files.train(0, 4, 7), smaller.train(0, 4, 7), strict=True):
        assert np.array_equal(one.targets["label"], other.targets["label"])
        difference = pixels_of(one.inputs["image"]) - pixels_of(other.inputs["image"])
        assert np.median(np.abs(difference)) < 8


def test_another_format_is_refused(stored: StorageFormat, folders: Folders) -> None:
    remedy = f"pass --set dataset.storage_format={stored}"
    with refused(f"are stored as {stored}, and dataset.storage_format is jpeg; {remedy}"):
        open_folder(folders[stored])
    with refused("are stored as jpeg, and dataset.storage_format is raw"):
        open_folder(folders["jpeg"], storage_format="raw")


def test_too_small_images(stored: StorageFormat, folders: Folders) -> None:
    open_folder(folders[stored], storage_format=stored, image_size=224)
    with refused("image_size 225 needs .* a shorter side of 257"):
        open_folder(folders[stored], storage_format=stored, image_size=225)


@pytest.mark.parametrize("engine", ["tensorflow", "torch"])
def test_incomplete_raw_images(engine: str, folders: Folders, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders["raw"], tmp_path / "prepared"))
    name = f"train-00001-of-{SHARDS:05d}"
    images = images_of(folder / name)
    forge_shard(folder, name, [*images[:-1], images[-1]._replace(encoded=images[-1].encoded[:-1])])
    dataset = open_folder(folder, engine=engine, storage_format="raw")
    with refused(f"reading {folder} failed: "):
        list(dataset.train(0, 4, 7))
    (line,) = verify_folder(folder, 2, decode=True).broken
    assert line.startswith(f"{folder / name}: {images[-1].name} cannot be decoded: ")


# The digest and its verification


def test_the_documented_digest(source: Path, stored: StorageFormat, folders: Folders) -> None:
    folder = folders[stored]
    lines = f"stored\t{stored}\n"
    for part in ("train", "validation"):
        for image in sorted(stored_images(folder, part), key=lambda each: each.name):
            small_png = stored == "resized" and image.name.endswith("_14.JPEG")
            file = source / part / image.name if small_png else None
            content = file.read_bytes() if file else image.encoded
            digest = hashlib.sha256(content).hexdigest()
            lines += f"{part}\t{image.name}\t{image.label}\t{digest}\n"
    info = load_dataset_manifest(folder, "imagenet")
    assert info.sha256 == hashlib.sha256(lines.encode()).hexdigest()
    assert info.storage_format == stored


def test_digests_of_formats_differ(folders: Folders) -> None:
    found = {load_dataset_manifest(folder, "imagenet").sha256 for folder in folders.values()}
    assert len(found) == 3
    assert "storage_format" not in json.loads((folders["jpeg"] / "dataset.json").read_text())


def test_a_folder_is_verified(stored: StorageFormat, folders: Folders) -> None:
    found = verify_folder(folders[stored], 2, decode=True)
    assert (found.samples, found.broken) == (22, ())


def test_a_manifest_of_another_format_is_not_that_of_the_images(copied: Path) -> None:
    manifest = json.loads((copied / "dataset.json").read_text())
    del manifest["storage_format"]
    (copied / "dataset.json").write_text(json.dumps(manifest))
    (line,) = verify_folder(copied, 2).broken
    assert f"{copied / 'dataset.json'} states the SHA-256" in line


def test_larger_images_than_the_format_has_are_named(copied: Path, stored: StorageFormat) -> None:
    name = f"train-00001-of-{SHARDS:05d}"
    first, *others = images_of(copied / name)
    forge_shard(copied, name, [first._replace(encoded=jpeg(_photo(0))), *others])
    (line,) = verify_folder(copied, 2, decode=True).broken
    assert line == f"{copied / name}: {first.name} is not stored as {stored}"


# Preparing


def test_an_interrupted_preparation_is_resumed_in_its_format(
    stored: StorageFormat, source: Path, folders: Folders, tmp_path: Path
) -> None:
    own_source = Path(shutil.copytree(source, tmp_path / "source"))
    last = sorted((own_source / "val").glob("*/*"))[-1]
    content = last.read_bytes()
    last.write_bytes(b"")
    with refused("is corrupt"):
        prepare_imagenet(own_source, tmp_path / "x", _options(stored))
    last.write_bytes(content)
    for other in {"jpeg", *RESIZED} - {stored}:
        with refused(f"an interrupted preparation with --storage-format {stored}, not {other}"):
            prepare_imagenet(own_source, tmp_path / "x", _options(other))
    lines: list[str] = []
    options = Options(shards=SHARDS, storage_format=stored, cores=2, report=lines.append)
    prepare_imagenet(own_source, tmp_path / "x", options)
    assert lines[1].endswith("3 of 4 shards are kept")
    assert content_of(tmp_path / "x") == content_of(folders[stored])


def test_space_for_raw_pixels(source: Path, tmp_path: Path, leave_free: LeaveFree) -> None:
    leave_free(sum(path.stat().st_size for path in source.glob("*/*/*")))
    with refused("no space for the dataset"):
        prepare_imagenet(source, tmp_path / "raw", _options("raw"))
    lines: list[str] = []
    options = Options(shards=1, storage_format="resized", report=lines.append)
    prepare_imagenet(source, tmp_path / "resized", options)
    assert lines[-1] == (
        "resized to a shorter side of 256 pixels if it is longer; others converted to RGB JPEG: "
        "1 PNG"
    )


def test_the_command(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--from", str(source), "--to", str(tmp_path / "raw"), "--shards", "1"]
    assert main(["prepare", "imagenet", *where, "--storage-format", "raw"]) == 0
    said = capsys.readouterr().out
    assert "stored as pixels, the shorter side resized to 256 if it is longer" in said
    assert main(["prepare", "cifar10", *where, "--storage-format", "raw"]) == 2
    assert "--storage-format is for imagenet" in capsys.readouterr().err
    assert main(["prepare", "imagenet", *where, "--storage-format", "png"]) == 2
    assert "invalid choice: 'png'" in capsys.readouterr().err
