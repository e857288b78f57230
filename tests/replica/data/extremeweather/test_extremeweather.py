"""Tests of preparing, reading and verifying the maps of Extreme Weather Analytics."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.datasets import load_dataset_manifest
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.extras import HDF5
from aiperf_hpc.replica.data import extremeweather, hdf5, load_dataset
from aiperf_hpc.replica.data.__main__ import main
from aiperf_hpc.replica.data.base import Dataset, empty_batch
from aiperf_hpc.replica.data.extremeweather import ExtremeWeatherCodec, Sample, checked_sample
from aiperf_hpc.replica.data.jobs import Progress
from aiperf_hpc.replica.data.sharded.index import load_index
from aiperf_hpc.replica.data.staging import Options
from aiperf_hpc.replica.data.tfrecord import write_record
from aiperf_hpc.replica.data.weather.datasets import BOX_CHANNELS as CHANNELS
from aiperf_hpc.replica.data.weather.fields import CHANNELS as FIELDS

HEIGHT, WIDTH, MAPS = 4, 6, 5
YEARS = ("1979", "1980", "1981")


LOW, HIGH = (
    np.array([getattr(FIELDS[name], bound) for name in CHANNELS])[:, None, None]
    for bound in ("low", "high")
)


def numbers(seed: int, maps: int = MAPS, height: int = HEIGHT) -> NDArray[np.float64]:
    """What networks read of a year, but with the channels first."""
    return np.random.default_rng(seed).standard_normal((maps, 16, height, WIDTH))


def write_year(path: Path, seed: int, maps: int = MAPS, height: int = HEIGHT) -> None:
    """The number of a map stands in its first box, so that a map can be told again."""
    images = (LOW + (HIGH - LOW) * numbers(seed, maps, height)).astype(np.float32)
    boxes = np.full((maps, 15, 5), -1.0, np.float32)
    boxes[:, 0] = [[0, 0, 1 + seed % 3, 1 + each % WIDTH, each % 4] for each in range(maps)]
    with h5py.File(path, "w") as file:
        file["images"], file["boxes"] = images, boxes


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "climo"
    folder.mkdir()
    for seed, year in enumerate(YEARS):
        write_year(folder / f"climo_{year}.h5", seed)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("whole")
    for seed, year in enumerate(YEARS):
        write_year(place / f"climo_{year}.h5", seed)
    extremeweather.prepare(place, place / "prepared", Options(shards=4, cores=2))
    return place / "prepared"


def opened(folder: Path) -> Dataset:
    return load_dataset(DatasetConfig(name="extremeweather", path=folder), 2)


def test_a_folder_says_what_it_holds(folder: Path, source: Path, tmp_path: Path) -> None:
    info = load_dataset_manifest(folder, "extremeweather")
    assert info.input_shape("image") == (HEIGHT, WIDTH, 16)
    assert info.targets["boxes"].shape == info.input_shape("boxes") == (15, 5)
    assert (info.train_samples, info.validation_samples) == (2 * MAPS, MAPS)
    assert opened(folder).info == info
    # However it is cut, it is the same.
    assert extremeweather.prepare(source, tmp_path / "again", Options(shards=2)) == info


def test_there_are_as_many_shards_as_are_asked_for(folder: Path) -> None:
    index = load_index(folder, "extremeweather")
    assert [shard.samples for shard in index.train] == [2, 3, 2, 3]
    assert [shard.samples for shard in index.validation] == [2, 3]


def test_every_map_comes_once_scaled_with_its_boxes(folder: Path) -> None:
    dataset = opened(folder)
    orders = []
    for epoch in (1, 2):
        batches = list(dataset.train(epoch, 4, 7))
        assert [batch.size for batch in batches] == [4, 4, 2]
        boxes = np.concatenate([batch.targets["boxes"] for batch in batches])
        orders.append([tuple(row) for row in boxes[:, 0].tolist()])
        assert (boxes[:, 1:] == -1).all()
    assert orders[0] != orders[1]
    wanted = [(0, 0, 1 + seed, 1 + each, each % 4) for seed in (0, 1) for each in range(MAPS)]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(wanted)
    (batch,) = dataset.validation(MAPS)
    np.testing.assert_array_equal(batch.inputs["boxes"], batch.targets["boxes"])
    np.testing.assert_allclose(batch.inputs["image"], numbers(2).transpose(0, 2, 3, 1), atol=1e-4)


def test_a_preparation_goes_on_where_it_was_interrupted(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"

    def interrupt(progress: Progress) -> None:
        if progress.done > MAPS:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extremeweather.prepare(source, target, Options(shards=4, progress=interrupt))
    said: list[str] = []
    extremeweather.prepare(source, target, Options(shards=4, report=said.append))
    assert any("shards are kept" in line for line in said)
    assert extremeweather.verify(target, 2).broken == ()


def _set(name: str, place: tuple[int, ...], value: float) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with h5py.File(folder / "climo_1980.h5", "r+") as file:
            file[name][place] = value

    return change


def _box(*numbers: float) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with h5py.File(folder / "climo_1980.h5", "r+") as file:
            file["boxes"][2, 1] = numbers

    return change


def _cut(folder: Path) -> None:
    path = folder / "climo_1980.h5"
    path.write_bytes(path.read_bytes()[:-100])


def _without(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with h5py.File(folder / "climo_1980.h5", "r+") as file:
            del file[name]

    return change


def _another(name: str, value: Any) -> Callable[[Path], None]:  # noqa: ANN401
    def change(folder: Path) -> None:
        _without(name)(folder)
        with h5py.File(folder / "climo_1980.h5", "r+") as file:
            file[name] = value

    return change


def _no_box(*years: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for year in years:
            with h5py.File(folder / f"climo_{year}.h5", "r+") as file:
                file["boxes"][:] = -1

    return change


def _a_group(folder: Path) -> None:
    _without("images")(folder)
    with h5py.File(folder / "climo_1980.h5", "r+") as file:
        file.create_group("images")


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
    path, images = folder / "climo_1980.h5", np.zeros((MAPS, 16, HEIGHT, WIDTH), np.float32)
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
    for year in YEARS[1:]:
        (folder / f"climo_{year}.h5").unlink()


WRONG: list[tuple[Callable[[Path], object], str]] = [
    (_set("images", (2, 7, 0, 0), np.nan), "climo_1980.h5: map 3: channel TREFHT has numbers that"),
    (_box(0, 0, 2, 2, 4), "climo_1980.h5: map 3: box 2: its class is 4; 0 to 3 are known"),
    (_box(0, 0, 2, 2, 1.5), "box 2: its class is 1.5"),
    (_box(2, 0, 1, 2, 1), "box 2: rows 2 to 1, columns 0 to 2: it is empty"),
    (_box(0, 7, 2, 9, 1), "columns 7 to 9: it lies outside the map of 4 x 6"),
    (_box(0, np.inf, 2, 9, 1), "are not finite numbers"),
    (_cut, "cannot read .*climo_1980.h5: it is no whole HDF5 file: .*truncated"),
    (_without("boxes"), "climo_1980.h5: it has no dataset boxes"),
    (
        _another("images", np.zeros((MAPS, 3, HEIGHT, WIDTH), np.float32)),
        "'images' is float32 .*float32 .maps, 16, height, width. is required",
    ),
    (_another("images", np.zeros((MAPS, 16, HEIGHT, WIDTH))), "'images' is float64"),
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
        "cannot read map 3 of .*climo_1980.h5: it is no whole HDF5 file: .*returned failure",
    ),
    (_no_box("1981"), "climo_1981.h5 is held out and has no box: there is nothing to find"),
    (_no_box("1979", "1980"), "no file of .*climo has a box but climo_1981.h5, which is held out"),
    (_only_one, "has 1 files named"),
]


@pytest.mark.parametrize(("damage", "message"), WRONG, ids=[m[:24] for _, m in WRONG])
def test_what_is_wrong_is_said_in_one_line(
    damage: Callable[[Path], object], message: str, source: Path, tmp_path: Path
) -> None:
    damage(source)
    with pytest.raises(DatasetError, match=message) as caught:
        extremeweather.prepare(source, tmp_path / "target", Options(shards=2))
    assert "\n" not in str(caught.value)


def test_all_maps_that_are_wrong_are_named(source: Path, tmp_path: Path) -> None:
    for place in (1, 3):
        _set("images", (place, 0, 0, 0), np.inf)(source)
    told: list[str] = []
    with pytest.raises(DatasetError, match="2 of 15 maps are corrupt"):
        extremeweather.prepare(source, tmp_path / "target", Options(complain=told.append))
    assert [line.split(": ")[1] for line in told] == ["map 2", "map 4"]


def test_a_box_that_reaches_over_the_edge_is_cut_there() -> None:
    rows = np.full((15, 5), -1.0)
    rows[1] = (-3, 2.5, 3.2, 100, 2)
    found = checked_sample(np.zeros((16, HEIGHT, WIDTH), np.float32), rows)
    assert isinstance(found, Sample)
    assert found.boxes[0].tolist() == [0, 2, 4, 6, 2]
    assert (found.boxes[1:] == -1).all()


def test_damage_to_a_prepared_folder_is_found(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "target"
    assert main(["prepare", "extremeweather", "--from", str(source), "--to", str(target)]) == 0
    assert main(["verify", str(target)]) == 0
    assert "15 samples" in capsys.readouterr().out
    shard = next(target.glob("train-*"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert main(["verify", str(target)]) == 1
    shard.write_bytes(content[:-1])
    with pytest.raises(DatasetError, match=f"{shard.name} .*"):
        opened(target)


@pytest.mark.parametrize("place", [40, -5], ids=["a field", "a class"])
def test_damage_is_found_where_a_map_is_read(source: Path, tmp_path: Path, place: int) -> None:
    target = tmp_path / "target"
    extremeweather.prepare(source, target, Options(shards=2))
    dataset = opened(target)
    shard = next(target.glob("train-*"))
    content = bytearray(shard.read_bytes())
    content[place] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DatasetError, match=f"{shard.name}, .* is damaged: its checksum is another"):
        list(dataset.train(1, 4, 0))


def test_a_record_of_another_size_is_no_map(folder: Path) -> None:
    codec, info = ExtremeWeatherCodec(), load_dataset_manifest(folder, "extremeweather")
    file = io.BytesIO()
    write_record(file, bytes(99))
    with pytest.raises(ValueError, match="99 bytes are no map of"):
        codec.decode(memoryview(file.getvalue()), empty_batch(info, 1), 0)
    with pytest.raises(ValueError, match="it has 0 records, not 1"):
        codec.sha256(memoryview(b""))


def test_without_h5py_it_is_said_what_installs_it(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdf5, "HDF5", HDF5._replace(package="no_such_package"))
    with pytest.raises(DatasetError, match="reading HDF5 needs the package 'h5py': .*hdf5"):
        extremeweather.prepare(source, tmp_path / "target")


def test_without_a_folder_it_is_said_how_to_give_one() -> None:
    with pytest.raises(DatasetError, match="no folder is given; pass --set dataset.path=FOLDER"):
        load_dataset(DatasetConfig(name="extremeweather"), 1)
