"""Tests of preparing, reading and verifying a folder of volumes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.cosmoflow_files import sample_file

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.datasets import load_dataset_manifest
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data import cosmoflow, load_dataset
from aiperf_hpc.replica.data.__main__ import main
from aiperf_hpc.replica.data.base import Dataset, Part
from aiperf_hpc.replica.data.cosmoflow import CosmoFlowFiles, Sample
from aiperf_hpc.replica.data.jobs import Progress
from aiperf_hpc.replica.data.sharded.preparation import shard_counts
from aiperf_hpc.replica.data.staging import Options

SIDE, TRAINING, HELD_OUT = 4, 11, 5


def sample(number: int, side: int = SIDE) -> Sample:
    """The number stands in the first parameter, so that a sample can be told again."""
    rng = np.random.default_rng(number)
    counts = rng.poisson(3.0, (side, side, side, 4)).astype(np.int16)
    return Sample(counts, np.array([number / 100, 0.0, 0.5, -0.5], np.float32))


def write_source(folder: Path, *, compressed: bool) -> Path:
    for part, first, number in (("train", 0, TRAINING), ("validation", 50, HELD_OUT)):
        (folder / part).mkdir(parents=True)
        for at in range(number):
            path = folder / part / f"univ_{at:03d}.tfrecord"
            path.write_bytes(sample_file(sample(first + at), compressed=compressed))
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(tmp_path_factory.mktemp("source"), compressed=True)


@pytest.fixture(scope="module")
def folder(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("prepared") / "cosmoflow"
    cosmoflow.prepare(source, target, Options(shards=3, cores=2))
    return target


@pytest.fixture
def own(source: Path, tmp_path: Path) -> Path:
    """A copy of the source that may be damaged."""
    return Path(shutil.copytree(source, tmp_path / "own"))


def opened(folder: Path) -> Dataset:
    return load_dataset(DatasetConfig(name="cosmoflow", path=folder), 2)


def numbers(values: NDArray[np.float32]) -> list[int]:
    return [round(100 * float(value)) for value in values[:, 0]]


def test_a_folder_says_what_it_holds(folder: Path) -> None:
    info = load_dataset_manifest(folder, "cosmoflow")
    assert info.input_shape("volume") == (SIDE, SIDE, SIDE, 4)
    assert info.targets["values"].shape == (4,)
    assert (info.train_samples, info.validation_samples) == (TRAINING, HELD_OUT)
    assert opened(folder).info == info


def test_the_digest_is_the_same_however_samples_were_stored_and_cut(
    folder: Path, tmp_path: Path
) -> None:
    plain = write_source(tmp_path / "plain", compressed=False)
    info = cosmoflow.prepare(plain, tmp_path / "again", Options(shards=5))
    assert info == load_dataset_manifest(folder, "cosmoflow")


def test_every_sample_comes_once_as_logarithms_with_its_parameters(folder: Path) -> None:
    dataset = opened(folder)
    orders = []
    for epoch in (1, 2):
        batches = list(dataset.train(epoch, 4, 7))
        assert [batch.size for batch in batches] == [4, 4, 3]
        found = np.concatenate([batch.targets["values"] for batch in batches])
        orders.append(numbers(found))
        volumes = np.concatenate([batch.inputs["volume"] for batch in batches])
        for number, volume in zip(orders[-1], volumes, strict=True):
            wanted = np.log1p(sample(number).counts.astype(np.float64)).astype(np.float32)
            np.testing.assert_array_equal(volume, wanted)
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(TRAINING))
    held_out = [b.targets["values"] for b in dataset.validation(3)]
    assert numbers(np.concatenate(held_out)) == list(range(50, 50 + HELD_OUT))


def test_parts_of_ranks_are_the_whole(folder: Path) -> None:
    dataset = opened(folder)
    whole = [numbers(b.targets["values"]) for b in dataset.train(1, 6, 0)]
    parts = [
        [numbers(b.targets["values"]) for b in dataset.train(1, 6, 0, Part(rank, 3))]
        for rank in range(3)
    ]
    assert [sum(each, []) for each in zip(*parts, strict=True)] == whole


def test_a_preparation_goes_on_where_it_was_interrupted(own: Path, tmp_path: Path) -> None:
    target, done = tmp_path / "target", list[int]()

    def interrupt(progress: Progress) -> None:
        done.append(progress.done)
        if progress.done > TRAINING // 3 + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        cosmoflow.prepare(own, target, Options(shards=11, progress=_every(interrupt)))
    assert "shards are kept" in caught.value.__notes__[0]
    said = list[str]()
    info = cosmoflow.prepare(own, target, Options(shards=11, report=said.append))
    assert any("resuming" in line for line in said)
    assert info.train_samples == TRAINING
    assert cosmoflow.verify(target, 2).broken == ()


def _every(show: Callable[[Progress], None]) -> Callable[[Progress], None]:
    return show


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: shutil.rmtree(f / "validation"), "with train/ and validation/"),
        (
            lambda f: [p.unlink() for p in (f / "train").iterdir()],
            r"has no files named \*.tfrecord\*",
        ),
        (lambda f: _write(f, sample(1, side=6)), "another variant: 6 x 6 x 6 x 4, GZIP, and the"),
        (lambda f: _write(f, sample(1), compressed=False), "another variant: .* not compressed"),
        (lambda f: _cut(f), "univ_003.tfrecord: it is truncated"),
    ],
)
def test_a_source_that_is_damaged_is_refused_in_a_line(
    spoil: Callable[[Path], object], message: str, own: Path, tmp_path: Path
) -> None:
    spoil(own)
    with pytest.raises(DatasetError, match=message) as caught:
        cosmoflow.prepare(own, tmp_path / "target")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "target").exists()


def _write(folder: Path, wrong: Sample, *, compressed: bool = True) -> None:
    path = folder / "train" / "univ_003.tfrecord"
    path.write_bytes(sample_file(wrong, compressed=compressed))


def _cut(folder: Path) -> None:
    path = folder / "train" / "univ_003.tfrecord"
    path.write_bytes(path.read_bytes()[:-20])


def test_all_broken_files_are_named(own: Path, tmp_path: Path) -> None:
    _cut(own)
    (own / "validation" / "univ_001.tfrecord").write_bytes(b"")
    said = list[str]()
    with pytest.raises(DatasetError, match="2 of 16 samples are corrupt or cannot be read"):
        cosmoflow.prepare(own, tmp_path / "target", Options(complain=said.append))
    assert [Path(line.partition(":")[0]).name for line in said] == [
        "univ_003.tfrecord", "univ_001.tfrecord",
    ]  # fmt: skip


def test_what_is_damaged_later_is_found(folder: Path, tmp_path: Path) -> None:
    assert cosmoflow.verify(folder, 2) == (3 + 1 + 3, TRAINING + HELD_OUT, ())
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    shard = sorted(copy.glob("train-*"))[1]
    content = bytearray(shard.read_bytes())
    content[-40] ^= 1
    shard.write_bytes(content)
    (problem,) = cosmoflow.verify(copy, 2).broken
    assert f"{shard} is not the shard that was prepared" in problem
    shard.write_bytes(content[:-1])
    with pytest.raises(DatasetError, match="is truncated"):
        opened(copy)


def test_a_sample_that_is_damaged_is_refused_when_it_is_read(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    dataset = opened(copy)
    for shard in copy.glob("train-*"):
        shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(DatasetError, match=r"reading .* failed: train-0000.*prepare it again"):
        list(dataset.train(1, 4, 0))


def test_the_command_prepares_and_verifies(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "target"
    assert main(["prepare", "cosmoflow", "--from", str(source), "--to", str(target)]) == 0
    out = capsys.readouterr().out
    assert "11 + 5 volumes of 4 x 4 x 4 x 4, GZIP, for 1 + 1 shards" in out
    assert "cosmoflow: 11 training and 5 validation samples in" in out
    assert main(["verify", str(target)]) == 0
    assert "as it was prepared: 5 files, 16 samples" in capsys.readouterr().out
    next(target.glob("train-*")).write_bytes(b"")
    assert main(["verify", str(target)]) == 1
    assert "1 of 5 files are broken" in capsys.readouterr().err


def test_more_shards_than_samples_are_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="--shards 12: for 11 training samples, 1 to 11"):
        cosmoflow.prepare(source, tmp_path / "target", Options(shards=12))


def test_a_shard_has_the_files_of_a_universe() -> None:
    assert shard_counts(524_288, 65_536, None, CosmoFlowFiles.shard_samples) == (8_192, 1_024)
