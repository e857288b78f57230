"""DeepCAM's maps in their official format."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from tests.support.damage import Damage
from tests.support.official_files import (
    FIELDS,
    HEIGHT,
    LARGEST,
    LEAST,
    WIDTH,
    fields_of,
    mask_of,
    write_climate,
    write_map,
    write_maps,
)
from tests.support.refusals import refused

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data import deepcam, load_dataset
from aiperf_hpc.replica.data.deepcam import Sample, read_sample, sample_file


@pytest.fixture
def own(tmp_path: Path) -> Path:
    write_maps(tmp_path / "own")
    return tmp_path / "own"


def test_maps_are_scaled_and_have_their_masks(own: Path, tmp_path: Path) -> None:
    info = deepcam.prepare(own, tmp_path / "prepared")
    assert info.input_shape("image") == (HEIGHT, WIDTH, FIELDS)
    dataset = load_dataset(DatasetConfig(name="deepcam", path=tmp_path / "prepared"), 2)
    (batch,) = dataset.validation(4)
    scale = (1.0 / (LARGEST - LEAST)).astype(np.float32)
    for number, image, mask in zip(
        range(50, 54), batch.inputs["image"], batch.targets["mask"], strict=True
    ):
        np.testing.assert_array_equal(image, scale * (fields_of(number) - LEAST))
        np.testing.assert_array_equal(mask, mask_of(number))


def test_the_digest_is_that_of_the_numbers_in_any_storage(own: Path, tmp_path: Path) -> None:
    info = deepcam.prepare(own, tmp_path / "first")
    path = own / "train" / "data-003.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("climate/data", data=fields_of(3), chunks=(8, 8, 1), compression="gzip")
        file["climate/labels_0"] = mask_of(3).astype(np.float32)
    assert deepcam.prepare(own, tmp_path / "again") == info
    write_map(path, 77)
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
    ({"labels_0": mask_of(1) / 2}, "numbers that are not classes"),
    ({"labels_0": None}, "it has no dataset climate/labels_0"),
    ({"labels_0": np.full((HEIGHT, WIDTH), b"1")}, "climate/labels_0 is \\|S1, not integers"),
    (
        {"data": fields_of(1).astype(np.float64) * 1e300},
        "not finite once stats.h5 scales it",
    ),
]


@pytest.mark.parametrize(("changed", "message"), CHANGES, ids=range(len(CHANGES)))
def test_invalid_files(changed: dict[str, Any], message: str, own: Path, tmp_path: Path) -> None:
    path = own / "train" / "data-001.h5"
    write_map(path, 1, **changed)
    with refused(f"^{path}.*{message}"):
        deepcam.prepare(own, tmp_path / "target")


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
    write_climate(folder / "stats.h5", minval=least, maxval=largest)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_cut, "data-001.h5: it is not a complete HDF5 file: .*truncated"),
        (
            lambda f: (f / "train" / "data-001.h5").write_bytes(b""),
            "it is not a complete HDF5 file",
        ),
        (lambda f: (f / "stats.h5").unlink(), "cannot read .*stats.h5: .*validation/ and stats.h5"),
        (lambda f: _statistics(f, LEAST, LEAST), "climate/maxval must be above climate/minval"),
        (lambda f: _statistics(f, LEAST, LARGEST[:3]), "for each of as many fields"),
        (lambda f: _statistics(f, None, LARGEST), "stats.h5: it has no dataset climate/minval"),
        (lambda f: _statistics(f, LEAST[0], LARGEST[0]), r"as many fields, got \(\) and \(\)"),
        (lambda f: _statistics(f, 0 * LEAST, 0 * LEAST + 1e-45), "too close to climate/minval"),
        (_of_a_type, "it has no dataset climate/data"),
        (_flipped, "data-001.h5: it is not a complete HDF5 file: "),
        (_dangling, "cannot read .*data-002.h5: No such file or directory$"),
        (lambda f: shutil.rmtree(f / "validation"), "cannot read .*validation: No such file"),
    ],
)
def test_damaged_sources(spoil: Damage, message: str, own: Path, tmp_path: Path) -> None:
    spoil(own)
    with refused(message):
        deepcam.prepare(own, tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_stored_map_of_another_shape_is_refused() -> None:
    sample = Sample(fields_of(1), mask_of(1).astype(np.uint8))
    again = read_sample(sample_file(sample))
    np.testing.assert_array_equal(again.fields, sample.fields)
    np.testing.assert_array_equal(again.mask, sample.mask)
    short = Sample(fields_of(1), mask_of(1).astype(np.uint8)[:-1])
    with pytest.raises(ValueError, match="a map of 32 x 48 x 5 does not have"):
        read_sample(sample_file(short))
    with pytest.raises(ValueError, match="it has 0 records, not 1"):
        read_sample(b"")
