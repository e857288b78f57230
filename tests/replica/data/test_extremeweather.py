"""The maps and boxes of the ExtremeWeather dataset in their official format."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from tests.support.damage import Damage
from tests.support.official_files import MAPS, YEAR_SHAPE, scaled_year, write_year, write_years
from tests.support.refusals import refused

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data import extremeweather, load_dataset
from aiperf_hpc.replica.data.base import empty_batch
from aiperf_hpc.replica.data.extremeweather import ExtremeWeatherCodec, Sample, checked_sample
from aiperf_hpc.replica.data.sharded.dataset import load_index
from aiperf_hpc.replica.data.staging import Options
from aiperf_hpc.replica.data.tfrecord import write_record

HEIGHT, WIDTH = YEAR_SHAPE[2:]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_years(tmp_path / "climo")
    return tmp_path / "climo"


def test_maps_are_scaled_and_have_their_boxes(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "prepared"
    info = extremeweather.prepare(source, target, Options(shards=4, cores=2))
    assert info.input_shape("image") == (HEIGHT, WIDTH, 16)
    assert info.targets["boxes"].shape == info.input_shape("boxes") == (15, 5)
    index = load_index(target, "extremeweather")
    assert [shard.samples for shard in index.train] == [2, 3, 2, 3]
    assert [shard.samples for shard in index.validation] == [2, 3]
    dataset = load_dataset(DatasetConfig(name="extremeweather", path=target), 2)
    (batch,) = dataset.validation(MAPS)
    np.testing.assert_array_equal(batch.inputs["boxes"], batch.targets["boxes"])
    assert batch.targets["boxes"][:, 0].tolist() == [[0, 0, 3, 1 + n, n % 4] for n in range(MAPS)]
    assert (batch.targets["boxes"][:, 1:] == -1).all()
    wanted = scaled_year(2).transpose(0, 2, 3, 1)
    np.testing.assert_allclose(batch.inputs["image"], wanted, atol=1e-4)


def _edit(change: Callable[[h5py.File], object], *years: str) -> Callable[[Path], None]:
    """Return what changes the files of some years, of 1980 if none is given."""

    def edit(folder: Path) -> None:
        for year in years or ("1980",):
            with h5py.File(folder / f"climo_{year}.h5", "r+") as file:
                change(file)

    return edit


def _set(name: str, place: Any, value: Any) -> Callable[[Path], None]:  # noqa: ANN401
    return _edit(lambda file: file[name].__setitem__(place, value))


def _box(*numbers: float) -> Callable[[Path], None]:
    return _set("boxes", (2, 1), numbers)


def _without(name: str) -> Callable[[Path], None]:
    return _edit(lambda file: file.__delitem__(name))


def _another(name: str, value: Any) -> Callable[[Path], None]:  # noqa: ANN401
    return _edit(lambda file: (file.__delitem__(name), file.__setitem__(name, value)))


def _no_box(*years: str) -> Callable[[Path], None]:
    return _edit(lambda file: file["boxes"].__setitem__(slice(None), -1), *years)


def _cut(folder: Path) -> None:
    path = folder / "climo_1980.h5"
    path.write_bytes(path.read_bytes()[:-100])


def _a_group(folder: Path) -> None:
    _edit(lambda file: (file.__delitem__("images"), file.create_group("images")))(folder)


def _a_folder(folder: Path) -> None:
    path = folder / "climo_1980.h5"
    path.unlink()
    path.mkdir()


def _no_such_type(folder: Path) -> None:
    """Exponents begin where no type of NumPy has them begin."""
    path = folder / "climo_1980.h5"
    content = path.read_bytes()
    mantissa, bias = bytes((23, 8, 0, 23)), (127).to_bytes(4, "little")
    assert content.count(mantissa + bias) == 2  # Of maps and of boxes.
    path.write_bytes(content.replace(mantissa + bias, mantissa + bytes((0, 0, 0, 127))))


def _packed_and_torn(folder: Path) -> None:
    """In a map of packed ones, where the file itself is as long as it should be."""
    path, images = folder / "climo_1980.h5", np.zeros(YEAR_SHAPE, np.float32)
    _without("images")(folder)
    with h5py.File(path, "r+") as file:
        packed = file.create_dataset(
            "images", data=images, chunks=images[:1].shape, compression="gzip"
        )
        place = packed.id.get_chunk_info(2)
    with path.open("r+b") as torn:
        torn.seek(place.byte_offset)
        torn.write(bytes(place.size))


def _only_one(folder: Path) -> None:
    for year in ("1980", "1981"):
        (folder / f"climo_{year}.h5").unlink()


WRONG: list[tuple[Damage, str]] = [
    (_set("images", (2, 7, 0, 0), np.nan), "climo_1980.h5: map 3: channel TREFHT has numbers that"),
    (_box(0, 0, 2, 2, 4), "climo_1980.h5: map 3: box 2: its class is 4; 0 to 3 are known"),
    (_box(0, 0, 2, 2, 1.5), "box 2: its class is 1.5"),
    (_box(2, 0, 1, 2, 1), "box 2: rows 2 to 1, columns 0 to 2: it is empty"),
    (_box(0, 7, 2, 9, 1), "columns 7 to 9: it lies outside the map of 4 x 6"),
    (_box(0, np.inf, 2, 9, 1), "are not finite numbers"),
    (_cut, "cannot read .*climo_1980.h5: it is not a complete HDF5 file: .*truncated"),
    (_without("boxes"), "climo_1980.h5: it has no dataset boxes"),
    (
        _another("images", np.zeros((MAPS, 3, HEIGHT, WIDTH), np.float32)),
        "'images' is float32 .*float32 .maps, 16, height, width. is required",
    ),
    (_another("images", np.zeros(YEAR_SHAPE)), "'images' is float64"),
    (
        _another("boxes", np.zeros((MAPS, 15, 4))),
        "'boxes' is float64 .5, 15, 4.; numbers",
    ),
    (
        lambda folder: write_year(folder / "climo_1980.h5", 1, height=8),
        "climo_1980.h5 has maps of .8, 6, 16., and climo_1979.h5 of .4, 6, 16.",
    ),
    (_another("boxes", np.zeros((MAPS, 15, 5), "c8")), "'boxes' is complex64 .5, 15, 5.; numbers"),
    (_set("images", (2, 7, 0, 0), 3e38), "map 3: channel TREFHT has 3e.38, where 240 to 310 is us"),
    (_a_group, "climo_1980.h5: it has no dataset "),
    (_a_folder, "cannot read .*climo_1980.h5: Is a directory$"),
    (_no_such_type, "cannot read .*climo_1980.h5: Insufficient precision"),
    (
        _packed_and_torn,
        "cannot read map 3 of .*climo_1980.h5: it is not a complete HDF5 file: .*returned failure",
    ),
    (_no_box("1981"), "climo_1981.h5 is held out and has no box: there is nothing to find"),
    (_no_box("1979", "1980"), "no file of .*climo has a box but climo_1981.h5, which is held out"),
    (_only_one, "has 1 files named"),
]


@pytest.mark.parametrize(("damage", "message"), WRONG, ids=[m[:24] for _, m in WRONG])
def test_damaged_sources(damage: Damage, message: str, source: Path, tmp_path: Path) -> None:
    damage(source)
    with refused(message):
        extremeweather.prepare(source, tmp_path / "target", Options(shards=2))


def test_a_box_that_reaches_over_the_edge_is_cut_there() -> None:
    rows = np.full((15, 5), -1.0)
    rows[1] = (-3, 2.5, 3.2, 100, 2)
    found = checked_sample(np.zeros((16, HEIGHT, WIDTH), np.float32), rows)
    assert isinstance(found, Sample)
    assert found.boxes[0].tolist() == [0, 2, 4, 6, 2]
    assert (found.boxes[1:] == -1).all()


def test_a_record_of_another_size_is_no_map(source: Path, tmp_path: Path) -> None:
    codec, info = ExtremeWeatherCodec(), extremeweather.prepare(source, tmp_path / "target")
    file = io.BytesIO()
    write_record(file, bytes(99))
    with pytest.raises(ValueError, match="99 bytes are not a map of"):
        codec.decode(memoryview(file.getvalue()), empty_batch(info, 1), 0)
    with pytest.raises(ValueError, match="it has 0 records, not 1"):
        codec.sha256(memoryview(b""))
