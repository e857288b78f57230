"""Tests of preparing, reading and verifying maps in DeepCAM's official format."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.extras import HDF5
from aiperf_hpc.replica.data import deepcam, hdf5, load_dataset
from aiperf_hpc.replica.data.__main__ import main
from aiperf_hpc.replica.data.base import Part
from aiperf_hpc.replica.data.deepcam import Sample, read_sample, sample_file
from aiperf_hpc.replica.data.staging import Options

HEIGHT, WIDTH, FIELDS = 32, 48, 5
TRAINING, HELD_OUT = 9, 4
LEAST = np.arange(FIELDS, dtype=np.float32) - 2.0
LARGEST = LEAST + np.array([1.0, 10.0, 0.5, 1e5, 2.0], np.float32)


def fields_of(number: int) -> Any:  # noqa: ANN401 -- an array
    """Of which the first number says which map it is."""
    found = np.random.default_rng(number).uniform(0, 1, (HEIGHT, WIDTH, FIELDS))
    found[0, 0, 0] = number / 100
    return (LEAST + found * (LARGEST - LEAST)).astype(np.float32)


def mask_of(number: int) -> Any:  # noqa: ANN401 -- an array
    return np.random.default_rng(number + 1000).integers(0, 3, (HEIGHT, WIDTH))


def write(path: Path, **datasets: Any) -> None:  # noqa: ANN401 -- arrays
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            if values is not None:
                file[f"climate/{name}"] = values


def write_sample(path: Path, number: int, **changed: Any) -> None:  # noqa: ANN401 -- arrays
    """As the official files are, whose masks are of 64 bits."""
    write(path, **{"data": fields_of(number), "labels_0": mask_of(number)} | changed)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    write(folder / "stats.h5", minval=LEAST, maxval=LARGEST)
    for part, first, number in (("train", 0, TRAINING), ("validation", 50, HELD_OUT)):
        (folder / part).mkdir()
        for at in range(number):
            write_sample(folder / part / f"data-{at:03d}.h5", first + at)
    return folder


@pytest.fixture(scope="module")
def folder(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("prepared") / "deepcam"
    deepcam.prepare(source, target, Options(shards=3, cores=2))
    return target


@pytest.fixture
def own(source: Path, tmp_path: Path) -> Path:
    """A copy of the source that may be damaged."""
    return Path(shutil.copytree(source, tmp_path / "own"))


def opened(folder: Path) -> Any:  # noqa: ANN401 -- with what is its own
    return load_dataset(DatasetConfig(name="deepcam", path=folder), 2)


def numbers(images: Any) -> list[int]:  # noqa: ANN401 -- an array
    return [round(100 * float(value)) for value in images[:, 0, 0, 0]]


def test_every_map_comes_once_scaled_with_its_mask(folder: Path) -> None:
    dataset = opened(folder)
    assert dataset.info.input_shape("image") == (HEIGHT, WIDTH, FIELDS)
    assert dataset.info.targets["mask"].shape == (HEIGHT, WIDTH)
    seen = []
    for batch in dataset.train(1, 4, 7):
        seen += numbers(batch.inputs["image"])
        for number, image, mask in zip(
            seen[-batch.size :], batch.inputs["image"], batch.targets["mask"], strict=True
        ):
            scale = (1.0 / (LARGEST - LEAST)).astype(np.float32)
            np.testing.assert_array_equal(image, scale * (fields_of(number) - LEAST))
            np.testing.assert_array_equal(mask, mask_of(number))
    assert sorted(seen) == list(range(TRAINING)) != seen
    held_out = [numbers(b.inputs["image"]) for b in dataset.validation(3)]
    assert held_out == [[50, 51, 52], [53]]


def test_a_rank_has_its_part_and_one_without_a_map_none(folder: Path) -> None:
    dataset = opened(folder)
    parts = [[b.size for b in dataset.validation(3, Part(rank, 4))] for rank in range(4)]
    assert parts == [[1, 1], [1], [1], []]


def test_the_digest_is_that_of_the_numbers_however_they_were_stored(
    folder: Path, own: Path, tmp_path: Path
) -> None:
    path = own / "train" / "data-003.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("climate/data", data=fields_of(3), chunks=(8, 8, 1), compression="gzip")
        file["climate/labels_0"] = mask_of(3).astype(np.float32)
    info = deepcam.prepare(own, tmp_path / "again", Options(shards=5))
    assert info == opened(folder).info
    write_sample(path, 77)
    assert deepcam.prepare(own, tmp_path / "other").sha256 != info.sha256


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"data": fields_of(1)[..., :3]}, "it has 3 fields, stats.h5 has 5"),
    ({"data": np.moveaxis(fields_of(1), -1, 0)}, "the fields must be the last axis"),
    ({"data": fields_of(1)[0]}, "not \\(height, width, fields\\)"),
    ({"data": fields_of(1)[:24]}, "height and width must be multiples of 16"),
    ({"data": fields_of(1)[:16]}, "its mask is of \\(32, 48\\), its fields of \\(16, 48\\)"),
    (
        {"data": fields_of(1)[:, :32], "labels_0": mask_of(1)[:, :32]},
        "another variant: 32 x 32 x 5, and the first sample 32 x 48 x 5",
    ),
    ({"data": fields_of(1) * np.float32(np.nan)}, "has a number that is not finite"),
    ({"data": fields_of(1).astype(np.int16)}, "is int16, not floating point"),
    ({"labels_0": mask_of(1)[:16]}, "its mask is of \\(16, 48\\)"),
    ({"labels_0": mask_of(1) + 1}, "climate/labels_0 has the class 3; there are 0 to 2"),
    ({"labels_0": -mask_of(1)}, "has the class -2"),
    ({"labels_0": mask_of(1) / 2}, "numbers that are no classes"),
    ({"labels_0": None}, "it has no dataset climate/labels_0"),
    ({"labels_0": np.full((HEIGHT, WIDTH), b"1")}, "climate/labels_0 is \\|S1, not integers"),
    (
        {"data": fields_of(1).astype(np.float64) * 1e300},
        "not finite once stats.h5 scales it",
    ),
]


@pytest.mark.parametrize(("changed", "message"), CHANGES, ids=range(len(CHANGES)))
def test_a_file_of_something_else_is_refused_in_a_line(
    changed: dict[str, Any], message: str, own: Path, tmp_path: Path
) -> None:
    path = own / "train" / "data-001.h5"
    write_sample(path, 1, **changed)
    with pytest.raises(DatasetError, match=message) as caught:
        deepcam.prepare(own, tmp_path / "target")
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def _cut(folder: Path) -> None:
    path = folder / "train" / "data-001.h5"
    path.write_bytes(path.read_bytes()[:-9000])


def _of_a_type(folder: Path) -> None:
    """Which is no dataset, and has a number type as one does."""
    with h5py.File(folder / "train" / "data-001.h5", "w") as file:
        file["climate/data"] = np.dtype("f4")


def _flipped(folder: Path) -> None:
    """What is stored of a field is not what was compressed."""
    path = folder / "train" / "data-001.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("climate/data", data=fields_of(1), compression="gzip")
        file["climate/labels_0"] = mask_of(1)
        (chunk,) = [file["climate/data"].id.get_chunk_info(0)]
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset + 9 : chunk.byte_offset + 99] = bytes(90)
    path.write_bytes(content)


def _dangling(folder: Path) -> None:
    path = folder / "train" / "data-002.h5"
    path.unlink()
    path.symlink_to("nowhere")


def _statistics(folder: Path, least: Any, largest: Any) -> None:  # noqa: ANN401 -- arrays
    write(folder / "stats.h5", minval=least, maxval=largest)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_cut, "data-001.h5: it is no whole HDF5 file: .*truncated"),
        (lambda f: (f / "train" / "data-001.h5").write_bytes(b""), "it is no whole HDF5 file"),
        (lambda f: (f / "stats.h5").unlink(), "cannot read .*stats.h5: .*validation/ and stats.h5"),
        (lambda f: _statistics(f, LEAST, LEAST), "climate/maxval must be above climate/minval"),
        (lambda f: _statistics(f, LEAST, LARGEST[:3]), "for each of as many fields"),
        (lambda f: _statistics(f, None, LARGEST), "stats.h5: it has no dataset climate/minval"),
        (lambda f: _statistics(f, LEAST[0], LARGEST[0]), r"as many fields, got \(\) and \(\)"),
        (lambda f: _statistics(f, 0 * LEAST, 0 * LEAST + 1e-45), "too near to climate/minval"),
        (_of_a_type, "it has no dataset climate/data"),
        (_flipped, "data-001.h5: it is no whole HDF5 file: "),
        (_dangling, "cannot read .*data-002.h5: No such file or directory$"),
        (lambda f: shutil.rmtree(f / "validation"), "cannot read .*validation: No such file"),
    ],
)
def test_a_source_that_is_damaged_is_refused_in_a_line(
    spoil: Callable[[Path], object], message: str, own: Path, tmp_path: Path
) -> None:
    spoil(own)
    with pytest.raises(DatasetError, match=message) as caught:
        deepcam.prepare(own, tmp_path / "target")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "target").exists()


def test_without_h5py_it_is_said_what_installs_it(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdf5, "HDF5", HDF5._replace(package="no_such_package"))
    with pytest.raises(DatasetError, match=r"needs the package 'h5py': .*hdf5"):
        deepcam.prepare(source, tmp_path / "target")


def test_the_command_prepares_and_verifies(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "target"
    assert main(["prepare", "deepcam", "--from", str(source), "--to", str(target)]) == 0
    out = capsys.readouterr().out
    assert "9 + 4 maps of 32 x 48 x 5, for 2 + 1 shards" in out
    assert main(["verify", str(target)]) == 0
    assert "deepcam: " in (out := capsys.readouterr().out)
    assert "as it was prepared: 6 files, 13 samples" in out
    shard = sorted(target.glob("train-*"))[1]
    content = bytearray(shard.read_bytes())
    content[-70] ^= 1
    shard.write_bytes(content)
    assert main(["verify", str(target)]) == 1
    assert "1 of 6 files are broken" in capsys.readouterr().err
    with pytest.raises(DatasetError, match=r"train-00001.*is damaged.*prepare it again"):
        list(opened(target).train(1, 4, 0))


def test_a_stored_map_of_another_shape_is_refused() -> None:
    sample = Sample(fields_of(1), mask_of(1).astype(np.uint8))
    again = read_sample(sample_file(sample))
    np.testing.assert_array_equal(again.fields, sample.fields)
    np.testing.assert_array_equal(again.mask, sample.mask)
    short = Sample(fields_of(1), mask_of(1).astype(np.uint8)[:-1])
    with pytest.raises(ValueError, match="a map of 32 x 48 x 5 has not"):
        read_sample(sample_file(short))
    with pytest.raises(ValueError, match="it has 0 records, not 1"):
        read_sample(b"")
