"""Datasets of shards: prepared, resumed, read and verified, over all that are prepared alike."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from tests.support.damage import flip
from tests.support.official_files import SOURCES, OfficialSource
from tests.support.refusals import refused

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.datasets import load_dataset_manifest
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.extras import HDF5
from aiperf_hpc.replica.data import hdf5, load_dataset
from aiperf_hpc.replica.data.__main__ import main
from aiperf_hpc.replica.data.base import Dataset, Part
from aiperf_hpc.replica.data.cosmoflow import CosmoFlowFiles
from aiperf_hpc.replica.data.progress import Progress
from aiperf_hpc.replica.data.sharded.preparation import even_jobs
from aiperf_hpc.replica.data.staging import Options


@pytest.fixture(scope="module", params=SOURCES)
def official(request: pytest.FixtureRequest) -> OfficialSource:
    return SOURCES[request.param]


@pytest.fixture(scope="module")
def source(official: OfficialSource, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("official") / "source"
    official.write(folder)
    return folder


@pytest.fixture(scope="module")
def folder(official: OfficialSource, source: Path) -> Path:
    official.module.prepare(source, source.parent / "prepared", Options(shards=3, cores=2))
    return source.parent / "prepared"


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A copy of the prepared folder that may be damaged."""
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def opened(official: OfficialSource, folder: Path | None) -> Dataset:
    return load_dataset(DatasetConfig.model_validate({"name": official.name, "path": folder}), 2)


def test_the_digest_does_not_depend_on_the_shards(
    official: OfficialSource, source: Path, folder: Path, tmp_path: Path
) -> None:
    info = official.module.prepare(source, tmp_path / "again", Options(shards=5))
    assert info == load_dataset_manifest(folder, official.name) == opened(official, folder).info
    counts = len(official.training), len(official.held_out)
    assert (info.train_samples, info.validation_samples) == counts


def test_epochs_have_every_sample_in_a_new_order(official: OfficialSource, folder: Path) -> None:
    dataset = opened(official, folder)
    epochs = [list(dataset.train(epoch, 4, 7)) for epoch in (1, 2)]
    assert all(batch.size == 4 for batches in epochs for batch in batches[:-1])
    first, second = ([n for b in batches for n in official.numbers(b)] for batches in epochs)
    assert first != second
    assert sorted(first) == sorted(second) == official.training
    assert [n for b in dataset.validation(3) for n in official.numbers(b)] == official.held_out


def test_parts_of_ranks_are_the_whole(official: OfficialSource, folder: Path) -> None:
    dataset = opened(official, folder)
    whole = [official.numbers(batch) for batch in dataset.train(1, 6, 0)]
    parts = [[official.numbers(b) for b in dataset.train(1, 6, 0, Part(r, 3))] for r in range(3)]
    assert [sum(each, []) for each in zip(*parts, strict=True)] == whole
    sizes = [[b.size for b in dataset.validation(3, Part(rank, 4))] for rank in range(4)]
    assert sizes[3] == []


def test_interrupted_preparations(official: OfficialSource, source: Path, tmp_path: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.done > len(official.training) // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        official.module.prepare(source, tmp_path / "x", Options(shards=4, progress=interrupt))
    assert "shards are kept" in caught.value.__notes__[0]
    lines: list[str] = []
    official.module.prepare(source, tmp_path / "x", Options(shards=4, report=lines.append))
    assert lines[1].startswith("resuming in ")
    assert official.module.verify(tmp_path / "x", 2).broken == ()


def test_all_broken_samples_are_named(
    official: OfficialSource, source: Path, tmp_path: Path
) -> None:
    own = Path(shutil.copytree(source, tmp_path / "own"))
    official.spoil(own, 1)
    official.spoil(own, 3)
    lines: list[str] = []
    total = len(official.training) + len(official.held_out)
    with pytest.raises(
        DatasetError, match=rf"2 of {total} (samples|maps) are corrupt or cannot be read"
    ):
        official.module.prepare(own, tmp_path / "x", Options(complain=lines.append))
    assert len(lines) == 2
    assert not (tmp_path / "x").exists()


def test_damage_after_the_preparation_is_found(official: OfficialSource, copy: Path) -> None:
    total = len(official.training) + len(official.held_out)
    dataset = opened(official, copy)
    shards = sorted(path.name for path in copy.glob("*-of-*"))
    assert official.module.verify(copy, 2) == (len(shards) + 3, total, ())
    flip(shard := copy / shards[1])
    (problem,) = official.module.verify(copy, 2).broken
    assert f"{shard} is not the shard that was prepared" in problem
    with refused(rf"reading .* failed: {shard.name}, .*prepare it again"):
        list(dataset.train(1, 4, 0))
    shard.write_bytes(shard.read_bytes()[:-1])
    with refused("is truncated"):
        opened(official, copy)


def test_the_command_prepares_and_verifies(
    official: OfficialSource, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, name = tmp_path / "target", official.name
    options = ["--from", str(source), "--to", str(target), "--shards", "3"]
    assert main(["prepare", name, *options]) == 0
    counts = f"{len(official.training)} training and {len(official.held_out)} validation samples"
    out = capsys.readouterr().out
    assert official.summary in out
    assert f"{name}: {counts} in" in out
    files = len(list(target.glob("*-of-*"))) + 3
    samples = len(official.training) + len(official.held_out)
    assert main(["verify", str(target)]) == 0
    out = capsys.readouterr().out
    assert f"is intact: {files} files, {samples} samples" in out
    next(target.glob("train-*")).write_bytes(b"")
    assert main(["verify", str(target)]) == 1
    assert f"1 of {files} files are damaged" in capsys.readouterr().err


def test_without_a_folder_the_option_is_named(official: OfficialSource) -> None:
    with refused("no folder is given; pass --set dataset.path=FOLDER"):
        opened(official, None)


@pytest.mark.parametrize("name", ["deepcam", "extremeweather"])
def test_missing_h5py(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SOURCES[name].write(tmp_path / "source")
    monkeypatch.setattr(hdf5, "HDF5", HDF5._replace(package="no_such_package"))
    with refused("reading HDF5 needs the package 'h5py': .*hdf5"):
        SOURCES[name].module.prepare(tmp_path / "source", tmp_path / "target")


def test_numbers_of_shards() -> None:
    with refused("--shards 12: for 11 training samples, 1 to 11"):
        even_jobs(range(11), range(5), 12, 64, "samples")
    jobs = even_jobs(range(524_288), range(65_536), None, CosmoFlowFiles.shard_samples, "samples")
    assert Counter(job.part for job in jobs) == {"train": 8_192, "validation": 1_024}
