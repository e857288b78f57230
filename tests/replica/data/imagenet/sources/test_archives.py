"""The official archives are read as they are, and their published checksums checked meanwhile."""

from __future__ import annotations

import os
from pathlib import Path
from types import MappingProxyType

import pytest
from tests.support import imagenet_layouts as layouts
from tests.support.imagenet_source import content_of
from tests.support.refusals import refused

from aiperf_hpc import datasets as official_datasets
from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.datasets import DEVKIT, TRAINING, VALIDATION, why_unofficial
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.imagenet.dataset import load
from aiperf_hpc.replica.data.imagenet.sources import archives, open_source
from aiperf_hpc.replica.data.imagenet.sources import prepare as prepare_imagenet
from aiperf_hpc.replica.data.imagenet.verification import verify_folder
from aiperf_hpc.replica.data.staging import Options

OPTIONS = Options(shards=4, cores=2)


@pytest.fixture
def source(source: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Little archives that are taken for the official ones."""
    published = MappingProxyType({"imagenet": layouts.archives(source)})
    monkeypatch.setattr(official_datasets, "ARCHIVES", published)
    monkeypatch.setattr(archives, "ARCHIVES", published)
    return source


def test_prepared_archives(source: Path, imagenet_folder: Path, tmp_path: Path) -> None:
    prepared = tmp_path / "prepared"
    prepare_imagenet(source, prepared, OPTIONS)
    made = content_of(prepared)
    made.pop("archives.json")
    assert made == content_of(imagenet_folder)
    assert sorted(path.name for path in source.iterdir()) == sorted([DEVKIT, TRAINING, VALIDATION])
    assert verify_folder(prepared, 1).broken == ()
    infos = [
        load(DatasetConfig(name="imagenet", path=folder), 1, "torch").info
        for folder in (prepared, imagenet_folder)
    ]
    assert infos[0].archives == official_datasets.ARCHIVES["imagenet"]
    assert why_unofficial(infos[0]) is None
    assert "not prepared from the official archives" in (why_unofficial(infos[1]) or "")
    assert "archives" not in infos[1].model_dump_json()


@pytest.mark.parametrize("name", [TRAINING, VALIDATION, DEVKIT])
def test_an_archive_with_another_byte_is_refused(name: str, source: Path, tmp_path: Path) -> None:
    content = bytearray((source / name).read_bytes())
    content[9] ^= 1  # In gzip's header, or in the name of the first member: images stay whole.
    (source / name).write_bytes(content)
    with refused(r"is (not the official archive: its MD5 is|damaged)"):
        prepare_imagenet(source, tmp_path / "prepared", OPTIONS)
    assert not (tmp_path / "prepared").exists()


def test_bytes_that_belong_to_no_image_count_too(source: Path, tmp_path: Path) -> None:
    with (source / VALIDATION).open("ab") as file:
        file.write(bytes(512))
    with pytest.raises(DatasetError, match=f"{VALIDATION} is not the official archive: its MD5"):
        prepare_imagenet(source, tmp_path / "prepared", OPTIONS)


def test_an_image_changed_after_the_check_is_refused(source: Path, tmp_path: Path) -> None:
    found = open_source(source, OPTIONS)
    (tmp_path / "unpacked").mkdir()
    image = found.training[3]
    with found.opened(tmp_path / "unpacked", OPTIONS):
        content = found.read(image)
        at = (source / TRAINING).read_bytes().index(content)
        with (source / TRAINING).open("r+b") as file:
            file.seek(at)
            file.write(bytes(len(content)))
        with pytest.raises(DatasetError, match="has changed since the archive was checked"):
            found.read(image)


def test_checked_archives_are_not_read_again(source: Path, tmp_path: Path) -> None:
    (unpacked := tmp_path / "unpacked").mkdir()
    for _ in range(2):
        found = open_source(source, OPTIONS)
        with found.opened(unpacked, OPTIONS):
            assert found.read(found.validation[0])
    noted = (unpacked / f"{TRAINING}.json").stat().st_mtime_ns
    os.utime(source / TRAINING, ns=(1, 1))
    found = open_source(source, OPTIONS)
    with found.opened(unpacked, OPTIONS):
        assert (unpacked / f"{TRAINING}.json").stat().st_mtime_ns != noted


def test_the_kit_is_needed(source: Path) -> None:
    (source / DEVKIT).unlink()
    with refused(f"has no {DEVKIT}, which has the labels"):
        open_source(source, OPTIONS)


@pytest.mark.parametrize("name", [TRAINING, VALIDATION])
def test_what_is_cut_is_damaged(name: str, source: Path) -> None:
    os.truncate(source / name, (source / name).stat().st_size // 3)
    with pytest.raises(DatasetError, match=f"{name} is (damaged|truncated)|lacks|no images"):
        open_source(source, OPTIONS)


def test_what_torchvision_unpacked_beside_them_is_not_read(source: Path, tmp_path: Path) -> None:
    (source / "train" / "n00000001").mkdir(parents=True)
    assert open_source(source, OPTIONS).layout == "the official archives"
