from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.support.damage import flip
from tests.support.imagenet_readers import forge_shard, images_of
from tests.support.imagenet_source import cut_out, jpeg, png

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.__main__ import main
from aiperf_hpc.replica.data.imagenet.stored_image import LabelledImage
from aiperf_hpc.replica.data.imagenet.verification import verify_folder
from aiperf_hpc.replica.data.sharded.dataset import load_index

SECOND = "train-00001-of-00004"


def _broken(folder: Path, *, decode: bool = False) -> tuple[str, ...]:
    found = verify_folder(folder, 2, decode=decode)
    assert all("\n" not in line for line in found.broken)
    return found.broken


def test_each_broken_file_is_named(folder: Path) -> None:
    shards = sorted(folder.glob("train-*"))
    os.truncate(shards[0], 1000)
    flip(shards[1], shards[1].stat().st_size // 2)
    shards[2].unlink()
    (folder / "sizes.npy").write_bytes(b"")
    sizes, first, second, third = _broken(folder)
    assert f"{folder / 'sizes.npy'} is damaged" in sizes
    assert f"{shards[0]} is truncated: it has 1000 bytes" in first
    assert "(it ends within the record at byte" in first
    assert f"{shards[1]} is not the shard that was prepared" in second
    assert "is damaged: its checksum differs)" in second
    assert f"cannot read {shards[2]}: No such file or directory" in third


Images = list[LabelledImage]


def _changed(images: Images, **changed: object) -> Images:
    return [images[0]._replace(**changed), *images[1:]]  # type: ignore[arg-type]


def _of_another_class(images: Images) -> Images:
    return _changed(images, label=(images[0].label + 1) % 3)


def _swapped(images: Images) -> Images:
    swapped = {0: 1, 1: 0, 2: 2}
    return [image._replace(label=swapped[image.label]) for image in images]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda images: _changed(images, label=3), "{} has the label 3, of 3 classes$"),
        (_of_another_class, "which is that of n0"),
        (_swapped, "the label .* in other shards$"),
    ],
)
def test_wrong_labels(change: Callable[[Images], Images], problem: str, folder: Path) -> None:
    images = images_of(folder / SECOND)
    forge_shard(folder, SECOND, change(images))
    (line,) = _broken(folder)
    found = problem.format(images[0].name)
    assert re.search(f"^{re.escape(str(folder / SECOND))}: .*{found}", line)


def test_labels_that_do_not_follow_the_classes(folder: Path) -> None:
    for shard in load_index(folder, "imagenet").train:
        images = images_of(folder / shard.file)
        forge_shard(folder, shard.file, [image._replace(label=2 - image.label) for image in images])
    lines = _broken(folder)
    assert "its labels do not follow the sorted classes: n0" in lines[0]


def test_samples_that_are_missing(folder: Path) -> None:
    forge_shard(folder, SECOND, images_of(folder / SECOND)[1:])
    sizes, shard = _broken(folder)
    assert "sizes.npy does not belong to the shards" in sizes
    assert shard == f"{folder / SECOND} has 6 images, not 7"


def test_other_images_of_the_same_names_and_labels(folder: Path) -> None:
    first, *others = images_of(folder / SECOND)
    copies = [other._replace(encoded=first.encoded) for other in others]
    forge_shard(folder, SECOND, [first, *copies])
    (line,) = _broken(folder, decode=True)
    assert f"{folder / 'dataset.json'} states the SHA-256" in line


@pytest.mark.parametrize("kind", ["truncated", "PNG"])
def test_images_that_do_not_decode(kind: str, folder: Path) -> None:
    images = images_of(folder / SECOND)
    encoded = jpeg(cut_out(1))[:-300] if kind == "truncated" else png(cut_out(1))
    forge_shard(folder, SECOND, [*images[:-1], images[-1]._replace(encoded=encoded)])
    (digest,) = _broken(folder)
    assert f"{folder / 'dataset.json'} states the SHA-256" in digest
    (line,) = _broken(folder, decode=True)
    assert line.startswith(f"{folder / SECOND}: {images[-1].name} ")


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(folder), "--decode"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"imagenet: {folder} is intact: 9 files, 39 images, decoded (")


def test_other_folders(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "shards.json").write_text("{}")
    with pytest.raises(DatasetError, match=r"shards\.json is damaged"):
        verify_folder(folder, 1)
    (tmp_path / "empty").mkdir()
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    manifest = (other / "dataset.json").read_text()
    (other / "dataset.json").write_text(manifest.replace('"imagenet"', '"digits"'))
    for place, message in (
        (tmp_path / "none", "there is no folder"),
        (tmp_path / "empty", "has no dataset.json"),
        (other, "holds dataset 'digits', which needs no preparation"),
        (folder, "shards.json is damaged"),
    ):
        assert main(["verify", str(place)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line


@pytest.mark.cifar10
def test_cifar10(cifar10_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(cifar10_folder)]) == 0
    assert capsys.readouterr().out == (f"cifar10: {cifar10_folder} is intact, 60000 samples\n")
    assert main(["verify", str(cifar10_folder), "--decode"]) == 2
    shutil.copytree(cifar10_folder, damaged := tmp_path / "damaged")
    labels = np.load(damaged / "test_labels.npy")
    labels[0] += 1
    np.save(damaged / "test_labels.npy", labels)
    capsys.readouterr()
    assert main(["verify", str(damaged)]) == 1
    assert "is not CIFAR-10" in capsys.readouterr().err
