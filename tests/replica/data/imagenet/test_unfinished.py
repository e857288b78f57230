"""Preparations that do not come to their end, and those that go on with them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.replica.data.conftest import LeaveFree
from tests.support import imagenet_layouts as layouts
from tests.support.damage import Damage, flip, removed, resized
from tests.support.imagenet_source import content_of
from tests.support.refusals import refused
from tests.support.waiting import until

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.host.processes import ProcessId, this_process
from aiperf_hpc.replica.data import staging
from aiperf_hpc.replica.data.imagenet.sources import prepare as prepare_imagenet
from aiperf_hpc.replica.data.staging import Options

SHARDS = 4


@pytest.fixture
def begun(source: Path, tmp_path: Path) -> Path:
    """What a preparation leaves that met a corrupt image in the last of its shards."""
    last = layouts.images(source, "val")[-1]
    content = last.read_bytes()
    last.write_bytes(b"")
    with pytest.raises(DatasetError, match="is corrupt") as error:
        prepare_imagenet(source, tmp_path / "x", Options(shards=SHARDS, cores=2))
    partial = tmp_path / "x.partial"
    assert error.value.__notes__ == [
        f"5 of 6 shards are kept in {partial}; run the same command again to resume"
    ]
    last.write_bytes(content)
    assert sorted(path.name for path in partial.iterdir()) == [
        "dataset", "finished", "preparation.json", "unpacked",
    ]  # fmt: skip
    return partial


def _prepare(source: Path, *, shards: int = SHARDS, restart: bool = False) -> list[str]:
    lines: list[str] = []
    options = Options(shards=shards, cores=2, restart=restart, report=lines.append)
    prepare_imagenet(source, source.parent / "x", options)
    return [line for line in lines if line.startswith(("resuming", "restarting"))]


def _numbers(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.glob("*-of-*")}


def test_finished_shards(source: Path, begun: Path, imagenet_folder: Path, tmp_path: Path) -> None:
    before = _numbers(begun / "dataset")
    assert _prepare(source) == [f"resuming in {begun}: 5 of 6 shards are kept"]
    assert content_of(tmp_path / "x") == content_of(imagenet_folder)
    assert before.items() <= _numbers(tmp_path / "x").items()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "x"]


def test_shards_of_changed_images_are_rewritten(source: Path, begun: Path, tmp_path: Path) -> None:
    first, second = layouts.images(source, "train")[:2]
    second.write_bytes(first.read_bytes())
    assert _prepare(source) == [
        f"resuming in {begun}: 4 of 6 shards are kept; rewriting 1 with changed images or damage"
    ]
    prepare_imagenet(source, tmp_path / "y", Options(shards=SHARDS))
    assert content_of(tmp_path / "x") == content_of(tmp_path / "y")


SHARD = "train-00002-of-00004"


@pytest.mark.parametrize(
    "damage",
    [
        lambda begun: flip(begun / "dataset" / SHARD, -1),
        removed(f"dataset/{SHARD}"),
        resized(f"finished/{SHARD}.json", 100),
    ],
    ids=["shard", "missing", "note"],
)
def test_a_damaged_finished_shard_is_rewritten(
    damage: Damage, source: Path, begun: Path, imagenet_folder: Path, tmp_path: Path
) -> None:
    damage(begun)
    assert "4 of 6 shards are kept; rewriting 1 with" in _prepare(source)[0]
    assert content_of(tmp_path / "x") == content_of(imagenet_folder)


def test_resuming_from_another_copy(
    source: Path, begun: Path, imagenet_folder: Path, tmp_path: Path
) -> None:
    """A copy may be on another disk. Changed shards are rewritten to the same dataset."""
    for image in source.glob("*/*/*.JPEG"):
        os.utime(image, (1, 1))
    assert "0 of 6 shards are kept; rewriting 5 with changed images" in _prepare(source)[0]
    assert content_of(tmp_path / "x") == content_of(imagenet_folder)


def test_other_samples_are_refused(source: Path, begun: Path, tmp_path: Path) -> None:
    layouts.images(source, "train")[3].unlink()
    said = rf"{begun} is an interrupted preparation of samples other than those in {source}; start"
    with refused(said):
        _prepare(source)
    assert len(list((begun / "finished").iterdir())) == 5
    assert _prepare(source, restart=True) == [
        f"restarting: the finished files in {begun} are removed"
    ]
    prepare_imagenet(source, tmp_path / "y", Options(shards=SHARDS))
    assert content_of(tmp_path / "x") == content_of(tmp_path / "y")


def test_another_number_of_shards_is_refused(source: Path, begun: Path) -> None:
    with refused(f"{begun} is an interrupted preparation with 4 training shards, not 3; start"):
        _prepare(source, shards=3)


def test_a_damaged_plan_is_refused(source: Path, begun: Path) -> None:
    (begun / "preparation.json").write_text("{")
    with refused(r"preparation\.json is damaged; start again with"):
        _prepare(source)
    assert len(_prepare(source, restart=True)) == 1


def test_foreign_folders_are_left_alone(source: Path, tmp_path: Path) -> None:
    (mine := tmp_path / "x.partial" / "mine").mkdir(parents=True)
    for restart in (False, True):
        with refused(r"x\.partial exists, but is not from an interrupted"):
            _prepare(source, restart=restart)
    mine.rmdir()
    _prepare(source)


def _own(partial: Path, process: ProcessId, age: float = 0.0) -> None:
    partial.mkdir(exist_ok=True)
    owner = {"process": process.model_dump(), "host": "node7"}
    (partial / "owner.json").write_text(json.dumps(owner))
    written = (partial / "owner.json").stat().st_mtime - age
    os.utime(partial / "owner.json", (written, written))


def test_the_owner_is_named(source: Path, tmp_path: Path) -> None:
    me, partial = this_process(), tmp_path / "x.partial"
    _own(partial, me, age=1e6)
    with refused(rf"process {me.pid} of node7 is preparing \S+/x; wait"):
        _prepare(source)
    _own(partial, me.model_copy(update={"machine": "another"}), age=20)
    with refused(r"its last heartbeat was 2\d s ago; wait for its end"):
        _prepare(source)
    (partial / "owner.json").write_text("{")  # It is just being written.
    with refused("another process is preparing"):
        _prepare(source)


@pytest.mark.parametrize(
    ("changed", "age"), [({"machine": "another"}, 61.0), ({"started": 1}, 0.0)]
)
def test_a_dead_owner(changed: dict[str, object], age: float, source: Path, begun: Path) -> None:
    _own(begun, this_process().model_copy(update=changed), age)
    assert "5 of 6 shards are kept" in _prepare(source)[0]


def test_heartbeats(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "HEARTBEAT_SECONDS", 0.001)
    owner, seen = tmp_path / "x.partial" / "owner.json", list[int]()

    def look(_: str) -> None:
        begun = owner.stat().st_mtime_ns
        until(lambda: owner.stat().st_mtime_ns != begun)
        seen.append(begun)

    prepare_imagenet(source, tmp_path / "x", Options(report=_first(look)))
    assert seen


def _first(look: Callable[[str], None]) -> Callable[[str], None]:
    """Look once, while the preparation is under way."""
    left = [look]
    return lambda line: left.pop()(line) if left else None


def test_unpacked_parquet_is_reused(source: Path, imagenet_folder: Path, tmp_path: Path) -> None:
    last = layouts.images(source, "val")[-1]
    content = last.read_bytes()
    last.write_bytes(b"none")
    layouts.parquet(source)
    with pytest.raises(DatasetError, match="is corrupt"):
        prepare_imagenet(source, tmp_path / "x", Options(shards=SHARDS))
    (changed,) = (p for p in source.glob("data/val*") if b"none" in p.read_bytes())
    _replace(changed, b"none", content)
    unpacked = tmp_path / "x.partial" / "unpacked"
    os.truncate(unpacked / "train-00001-of-00002.images", 5)

    def times() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in unpacked.glob("*.images")}

    before, lines = times(), list[str]()
    assert len(before) == 4

    def look(line: str) -> None:
        lines.append(line)
        assert times() == before

    prepare_imagenet(source, tmp_path / "x", Options(shards=SHARDS, report=_first(look)))
    assert lines
    assert content_of(tmp_path / "x") == content_of(imagenet_folder)


def _replace(path: Path, old: bytes, new: bytes) -> None:
    from pyarrow.parquet import read_table

    rows = read_table(path).to_pylist()
    for row in rows:
        if row["image"]["bytes"] == old:
            row["image"]["bytes"] = new
    layouts.write_parquet(path, rows)


def test_no_room_for_what_is_left(source: Path, begun: Path, leave_free: LeaveFree) -> None:
    left = sum(path.stat().st_size for path in layouts.images(source, "val")[6:])
    leave_free(left - 1)
    with pytest.raises(DatasetError, match="no space for the dataset in") as error:
        _prepare(source)
    assert "5 of 6 shards are kept" in error.value.__notes__[0]
    leave_free(left)
    assert _prepare(source)


def test_parquet_needs_room_twice(source: Path, tmp_path: Path, leave_free: LeaveFree) -> None:
    layouts.parquet(source)
    size = sum(path.stat().st_size for path in source.glob("data/[tv][ra]*"))
    leave_free(int(1.5 * size))
    with refused("no space for the dataset in"):
        _prepare(source)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]
