from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from tests.replica.data.conftest import LeaveFree
from tests.support.command import aiperf_process
from tests.support.refusals import refused

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data import load_dataset
from aiperf_hpc.replica.data.local_copy import LocalCopy, local_copy
from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.run.records import DatasetLoaded


def _config(folder: Path, **values: object) -> DatasetConfig:
    settings = {"name": "imagenet", "path": folder, "image_size": 32, **values}
    return DatasetConfig.model_validate(settings)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _on_disk(folder: Path, cache: Path) -> LocalCopy:
    return local_copy(_config(folder, cache="disk", cache_path=cache), 2)


@pytest.fixture
def source(imagenet_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(imagenet_folder, tmp_path / "source"))


def test_no_cache_changes_nothing(imagenet_folder: Path) -> None:
    config = _config(imagenet_folder)
    assert local_copy(config, 2) == LocalCopy(config, 0.0, 0)


def test_a_copy_on_disk_is_read_instead(source: Path, tmp_path: Path) -> None:
    copy, again = (_on_disk(source, tmp_path / "cache") for _ in range(2))
    assert copy.bytes == _bytes(source)
    assert copy.seconds > 0
    assert (again.config, again.bytes) == (copy.config, 0)
    info = load_dataset(_config(source), 2).info
    shutil.rmtree(source)
    dataset = load_dataset(copy.config, 2, "torch")
    assert dataset.info == info
    assert sum(batch.size for batch in dataset.train(0, 5, 0)) == info.train_samples


def test_what_is_cut_or_another_is_copied_again(source: Path, tmp_path: Path) -> None:
    folder = _on_disk(source, tmp_path / "cache").config.path
    assert folder is not None
    shards = sorted(folder.glob("train-*"))
    os.truncate(shards[0], 1000)
    content = bytearray(shards[1].read_bytes())
    content[100] ^= 1
    shards[1].write_bytes(content)
    (folder / ".train-00000-of-00004.partial").write_bytes(b"of a copy that was killed")
    again = _on_disk(source, tmp_path / "cache")
    assert again.bytes == sum(path.stat().st_size for path in shards[:2])
    assert _bytes(folder) == _bytes(source)
    for path in source.iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes()


def test_two_datasets_share_a_cache(source: Path, tmp_path: Path) -> None:
    first = _on_disk(source, tmp_path / "cache")
    (source / "dataset.json").write_text((source / "dataset.json").read_text() + "\n")
    second = _on_disk(source, tmp_path / "cache")
    assert first.config.path != second.config.path
    assert first.bytes == second.bytes - 1


def test_processes_of_a_node_copy_once(source: Path, tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data.local_copy import local_copy
config = DatasetConfig(
    name="imagenet", path=Path({str(source)!r}), cache="disk", cache_path=Path({str(tmp_path)!r})
)
print(local_copy(config, 2).bytes)
"""
    command = [sys.executable, "-c", script]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    copied = sorted(int(process.communicate()[0]) for process in both)
    assert copied == [0, _bytes(source)]


def test_memory_has_what_was_read_once(source: Path) -> None:
    copy = local_copy(_config(source, cache="memory"), 2)
    assert copy.config.path == source
    assert copy.bytes == _bytes(source)
    assert copy.seconds > 0


# What is refused, in one line


def _refused(config: DatasetConfig, message: str) -> None:
    with refused(message):
        local_copy(config, 2)


def test_a_full_disk(source: Path, tmp_path: Path, leave_free: LeaveFree) -> None:
    leave_free(1000)
    config = _config(source, cache="disk", cache_path=tmp_path / "cache")
    _refused(config, "no space for the dataset in .*cache: it needs 234.1 KiB, 1000 B are free")


def test_too_little_memory(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    _refused(_config(source, cache="memory"), "no memory for the dataset .* dataset.cache to none")


def test_a_cache_that_cannot_be_written(source: Path) -> None:
    config = _config(source, cache="disk", cache_path=Path("/proc/x"))
    _refused(config, "cannot copy the dataset in .* to its cache: No such file or directory")


def test_a_folder_that_is_no_dataset(tmp_path: Path) -> None:
    _refused(_config(tmp_path / "none", cache="memory"), "there is no folder")
    _refused(_config(tmp_path, cache="disk", cache_path=tmp_path / "c"), "has no dataset.json")


def test_a_run_records_its_copy(imagenet_folder: Path, tmp_path: Path) -> None:
    settings = (
        f"dataset.path={imagenet_folder}",
        "dataset.cache=disk",
        f"dataset.cache_path={tmp_path / 'cache'}",
        "dataset.image_size=32",
        "engine.name=simulated",
        "training.batch_size=8",
        "hpo.space.batch_size={choices: [8]}",
    )
    assignments = [word for setting in settings for word in ("--set", setting)]
    options = ["--nodes", 1, "--hours", 0.0003, "--launcher", "local", "--yes", *assignments]
    where = ["--config", "imagenet", "--run-dir", tmp_path / "run"]
    done = aiperf_process("start", *options, *where)
    assert done.returncode == 0, done.stderr
    (journal,) = (tmp_path / "run" / "replicas" / "r0").glob("*/journal.jsonl")
    (loaded,) = (
        record.event
        for record in JournalReader(journal).read()
        if isinstance(record.event, DatasetLoaded)
    )
    assert loaded.staged_bytes == _bytes(imagenet_folder)
    assert loaded.staged_seconds > 0
