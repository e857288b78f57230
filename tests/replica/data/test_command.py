"""``python -m aiperf_hpc.replica.data``, as the primary starts it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest
from PIL import Image
from tests.support.command import AIPERF, aiperf_process
from tests.support.imagenet_source import content_of, jpeg, write_source
from tests.support.processes import in_a_group
from tests.support.refusals import refused
from tests.support.waiting import PATIENCE_SECONDS, until

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.config.run import PREPARED_DATASETS
from aiperf_hpc.datasets import load_dataset_manifest
from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary.control.prepare import describe_dataset
from aiperf_hpc.replica.data import dataset_names, load_dataset
from aiperf_hpc.replica.data.__main__ import main

DATA = ("data",)


def _refused(capsys: pytest.CaptureFixture[str], arguments: Sequence[object], message: str) -> None:
    assert main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("aiperf: ")
    assert message in line


def _prepare(source: Path, target: Path, name: str = "imagenet") -> list[object]:
    return ["prepare", name, "--from", source, "--to", target]


def test_describe(imagenet_folder: Path) -> None:
    config = DatasetConfig(name="imagenet", path=imagenet_folder)
    assert describe_dataset(config).train_samples == 27
    with pytest.raises(UsageError, match=r"has no dataset\.json"):
        describe_dataset(config.model_copy(update={"path": imagenet_folder.parent}))


def test_prepare_prints_what_it_made(imagenet_source: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder"
    done = aiperf_process(*DATA, *_prepare(imagenet_source, target), "--shards", 2, "--restart")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == (
        f"{imagenet_source}: train/ and val/ with a folder for each class; 27 + 12 images of 3 "
        "classes, for 2 + 1 shards"
    )
    assert lines[-3] == "converted to RGB JPEG: 1 CMYK JPEG, 1 PNG"
    assert lines[-2].startswith("imagenet: 27 training and 12 validation images of 3 classes in ")
    assert lines[-1] == f"SHA-256 {load_dataset_manifest(target, 'imagenet').sha256}"
    shards = {"train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"}
    made = {path.name for path in target.iterdir()}
    assert made == shards | {"dataset.json", "shards.json", "sizes.npy"}
    os.truncate(target / "train-00001-of-00002", 10)
    done = aiperf_process(*DATA, "verify", target, "--decode")
    assert (done.returncode, done.stdout) == (1, "")
    named, summary = done.stderr.splitlines()
    assert named.startswith("aiperf: dataset 'imagenet': ")
    assert "train-00001-of-00002 is truncated: it has 10 bytes" in named
    assert "1 of 6 files are damaged" in summary


@pytest.mark.parametrize("name", PREPARED_DATASETS)
def test_missing_sources(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "none", tmp_path / "target"
    _refused(capsys, _prepare(source, target, name), str(source))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", sorted(set(dataset_names()) - set(PREPARED_DATASETS)))
def test_a_dataset_in_no_folder_is_not_prepared_nor_read_from_one(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = _prepare(tmp_path, tmp_path / "x", name)
    _refused(capsys, arguments, f"dataset '{name}' needs no preparation")
    with refused(f"dataset '{name}' needs no folder; omit it"):
        load_dataset(DatasetConfig.model_validate({"name": name, "path": tmp_path}), 1)


def test_unknown_names_and_missing_options(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["prepare", "mnist"], ["prepare", "cifar10"], []):
        _refused(capsys, arguments, "")


def test_existing_targets(
    imagenet_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    _refused(capsys, _prepare(imagenet_source, tmp_path), "it is not empty; name a new folder")
    _refused(capsys, _prepare(imagenet_source, file), "it is a file, not a folder")
    _refused(capsys, _prepare(imagenet_source, file / "below"), "file is a file")
    assert file.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_permission_denied(unprivileged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = unprivileged / "source"
    for place in ("train/n1", "train/n2", "val/n1", "val/n2"):
        (source / place).mkdir(parents=True)
        (source / place / "a.JPEG").write_bytes(b"")
    (closed := unprivileged / "closed").mkdir(mode=0o500)
    _refused(capsys, _prepare(source, closed / "x"), "Permission denied")
    (source / "train").chmod(0o300)
    _refused(capsys, _prepare(source, unprivileged / "x"), "Permission denied")


def test_read_only_file_systems(imagenet_source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _refused(capsys, _prepare(imagenet_source, Path("/proc/x")), "cannot write the dataset to")


def test_shards_that_cannot_be_written(imagenet_source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "x"
    command = [sys.executable, "-m", "aiperf_hpc.replica.data", *_prepare(imagenet_source, folder)]
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (100_000, 100_000))
    done = subprocess.run(  # No file may be larger than 100 kB, so that writing fails.
        [*map(str, command), "--shards", "1"],
        check=False, stderr=subprocess.PIPE, text=True, preexec_fn=limit,
    )  # fmt: skip
    assert done.returncode == 2
    unfinished = folder.with_name("x.partial")
    kept = (
        f"; 1 of 2 shards are kept in {unfinished}; run the same command again to resume"
        if unfinished.exists()  # The other shard may have been finished before this one failed.
        else ""
    )
    assert done.stderr == f"aiperf: cannot write the dataset to {folder}: File too large{kept}\n"


def test_each_corrupt_image_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_source(tmp_path / "source")
    images = sorted(source.glob("*/*/*.JPEG"))
    corrupt = [images[1], images[7], images[20], images[-1]]
    for image in corrupt:
        image.write_bytes(b"<html>")
    corrupt[0].unlink()
    corrupt[0].symlink_to("nowhere")
    arguments = [*_prepare(source, tmp_path / "x"), "--shards", "5"]
    assert main([str(argument) for argument in arguments]) == 2
    *named, last = capsys.readouterr().err.splitlines()
    assert last == (
        "aiperf: 4 of 39 images are corrupt or cannot be read: those above; replace or remove "
        f"them; 3 of 7 shards are kept in {tmp_path / 'x.partial'}; run the same command "
        "again to resume"
    )
    assert sorted(named) == sorted(
        [
            f"aiperf: cannot read {corrupt[0]}: No such file or directory",
            *(f"aiperf: {image} is corrupt: it is not an image" for image in corrupt[1:]),
        ]
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "x.partial"]


# Preparations that are ended.


@pytest.fixture(scope="module")
def slow_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source that takes long to prepare and little room: one large image, many times."""
    source = tmp_path_factory.mktemp("slow") / "source"
    content = jpeg(Image.new("RGB", (3000, 3000), "olive"))
    for part in ("train", "val"):  # So that no core is free to end a shard of it early.
        for wnid in ("n1", "n2"):
            (folder := source / part / wnid).mkdir(parents=True)
            (folder / "0.JPEG").write_bytes(content)
            for number in range(1, 1000):
                (folder / f"{number}.JPEG").hardlink_to(folder / "0.JPEG")
    return source


@contextmanager
def _begun(source: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a preparation and wait until it writes images."""
    folder.mkdir()

    def writes() -> bool:
        return any(shard.stat().st_size for shard in folder.glob("x.partial/dataset/train-*"))

    with in_a_group(*AIPERF, *DATA, *_prepare(source, folder / "x")) as process:
        until(writes, of=process)
        yield process


@pytest.mark.parametrize(
    ("number", "send"),
    [
        (signal.SIGINT, os.killpg),  # As a terminal's Ctrl-C does.
        (signal.SIGTERM, os.kill),  # To the command alone, as `kill` and schedulers do.
    ],
)
def test_an_ended_preparation_leaves_nothing_behind(
    number: signal.Signals, send: Callable[[int, int], None], slow_source: Path, tmp_path: Path
) -> None:
    with _begun(slow_source, tmp_path / "data") as process:
        for _ in range(3):  # Whoever is impatient is no reason to leave half of it.
            send(process.pid, number)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 128 + number, errors
    assert errors == "aiperf: interrupted; nothing is left behind\n"
    assert not list((tmp_path / "data").iterdir())


def _kept(folder: Path) -> int:
    return len(list((folder / "x.partial" / "finished").glob("*.json")))


def test_an_interrupted_preparation_keeps_its_shards(slow_source: Path, tmp_path: Path) -> None:
    arguments = [*_prepare(slow_source, tmp_path / "x"), "--shards", "1000"]
    kept = 0

    def goes_on() -> bool:
        return _kept(tmp_path) > kept

    for again in (False, True):
        with in_a_group(*AIPERF, *DATA, *arguments) as process:
            until(goes_on, of=process)
            os.killpg(process.pid, signal.SIGINT)
            output, errors = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 130
        kept = _kept(tmp_path)
        assert errors == (
            f"aiperf: interrupted; {kept} of 2000 shards are kept in {tmp_path / 'x.partial'}; "
            "run the same command again to resume\n"
        )
        assert ("resuming in" in output) == again
        shards = {path.name for path in (tmp_path / "x.partial" / "dataset").iterdir()}
        assert len(shards) == kept
    assert [path.name for path in tmp_path.iterdir()] == ["x.partial"]


def test_a_killed_preparation_is_resumed(imagenet_folder: Path, tmp_path: Path) -> None:
    source, target = write_source(tmp_path / "source"), tmp_path / "x"
    arguments = [*_prepare(source, target), "--shards", "4"]
    last = sorted(source.glob("val/*/*.JPEG"))[-1]
    content = last.read_bytes()
    last.unlink()
    os.mkfifo(last)  # It is waited for what is in it, in the last shard.
    with in_a_group(*AIPERF, *DATA, *arguments) as process:
        until(lambda: _kept(tmp_path) == 5, of=process)
        beside = aiperf_process(*DATA, *arguments)
        assert beside.returncode == 2
        assert f"is preparing {target}; wait for its end" in beside.stderr
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    kept = {path: path.stat().st_ino for path in (tmp_path / "x.partial" / "dataset").iterdir()}
    last.unlink()
    last.write_bytes(content)
    done = aiperf_process(*DATA, *arguments)
    assert f"resuming in {tmp_path / 'x.partial'}: 5 of 6 shards are kept\n" in done.stdout
    same = [
        path.name for path, number in kept.items() if (target / path.name).stat().st_ino == number
    ]
    assert {f"train-{number:05d}-of-00004" for number in range(4)} <= set(same)
    assert content_of(target) == content_of(imagenet_folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "x"]


def test_a_killed_preparation_reports_the_signal(slow_source: Path, tmp_path: Path) -> None:
    with _begun(slow_source, tmp_path / "data") as process:
        (child,) = psutil.Process(process.pid).children()
        child.kill()
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 128 + signal.SIGKILL
    assert "SIGKILL" in errors
    assert len(errors.splitlines()) == 1
