"""What is looked for in sources, and what is left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.result_logs import heading, training, write_log

from aiperf_hpc.analysis.readers import sources as module
from aiperf_hpc.analysis.readers.mllog import read_logs
from aiperf_hpc.analysis.readers.sources import (
    dawnbench_pairs,
    read_sources,
    regular_files,
    run_directories,
)
from aiperf_hpc.errors import UsageError


def names(source: Path) -> list[str]:
    return [str(path.relative_to(source)) for path in regular_files(source, [])]


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere: no such file or folder"):
        read_sources([tmp_path / "nowhere"])


@pytest.mark.parametrize("text", [None, "words\n"])
def test_a_source_with_nothing_in_it(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "notes.txt").write_text(text)
    found = read_sources([tmp_path])
    assert found.entries == ()
    assert [(one.path, one.reason) for one in found.unreadable] == [
        (str(tmp_path), "no run directory, mllog result or DAWNBench entry is in it")
    ]


def test_only_regular_files_within_the_source_are_found(tmp_path: Path) -> None:
    outside = write_log(tmp_path / "outside" / "result_1.txt", heading(), training())
    source = tmp_path / "source"
    inside = write_log(source / "result_1.txt", heading(), training())
    os.mkfifo(source / "result_2.txt")
    (source / "result_3.txt").symlink_to(outside)
    (source / "result_4.txt").symlink_to("/dev/zero")
    (source / "result_5.txt").symlink_to("nowhere")
    (source / "again.txt").symlink_to(inside)
    (source / "loop").symlink_to(source)
    (source / "elsewhere").symlink_to(outside.parent)
    (source / ".git").mkdir()
    (source / ".git" / "result_6.txt").write_text("x")
    assert names(source) == ["again.txt", "result_1.txt"]
    (entry,) = read_sources([source]).entries
    assert len(entry.logs) == 1


def test_a_run_directory_is_found_by_its_run_yaml_alone(tmp_path: Path) -> None:
    write_log(tmp_path / "runs" / "a" / "run.yaml", ["{}"])
    write_log(tmp_path / "runs" / "a" / "logs" / "result_1.txt", heading(), training())
    write_log(tmp_path / "logs" / "result_1.txt", heading(), training())
    files = list(regular_files(tmp_path, []))
    assert names(tmp_path) == ["logs/result_1.txt", "runs/a/run.yaml"]
    run = tmp_path / "runs" / "a"
    assert run_directories(files, tmp_path) == [(run / "run.yaml",)]
    assert run_directories(list(regular_files(run, [])), run) == [(run / "run.yaml",)]


def test_pairs_of_dawnbench(tmp_path: Path) -> None:
    for name in ("a.json", "a.tsv", "b.json", "c.tsv", "d.txt"):
        (tmp_path / name).write_text("{}")
    files = sorted(tmp_path.iterdir())
    pair = (tmp_path / "a.json", tmp_path / "a.tsv")
    assert dawnbench_pairs(files, tmp_path) == [pair]
    for one in pair:
        assert dawnbench_pairs([one], one) == [pair]
    assert dawnbench_pairs([tmp_path / "b.json"], tmp_path / "b.json") == []


def test_a_folder_that_cannot_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path / "good" / "result_1.txt", heading(), training())
    (tmp_path / "locked").mkdir()
    scandir = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = read_sources([tmp_path])
    assert len(found.entries) == 1
    assert [(one.path, one.reason) for one in found.unreadable] == [
        (str(tmp_path / "locked"), "Permission denied")
    ]


def test_several_processes_read_what_one_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / f"result_{number}.txt" for number in range(4)]
    for seed, path in enumerate(paths):
        write_log(path, heading(seed=seed), training())
    (tmp_path / "result_2.txt").write_text("")
    alone = read_logs(paths)
    monkeypatch.setattr("aiperf_hpc.analysis.readers.mllog.POOL_BYTES", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    assert read_logs(paths) == alone


def test_a_log_behind_much_other_output_is_read_and_an_empty_one_is_named(tmp_path: Path) -> None:
    path = write_log(tmp_path / "slurm-7.out", heading(), training())
    path.write_bytes(b"launching\n" * (module.PROBED // 10 + 1) + path.read_bytes())
    (tmp_path / "empty.log").touch()
    (tmp_path / "other.log").write_text("of another program\n", "utf-8")
    reading = read_sources([tmp_path])
    (entry,) = reading.entries
    assert [Path(log.source).name for log in entry.logs] == ["slurm-7.out"]
    assert [(Path(one.path).name, one.reason) for one in reading.unreadable] == [
        ("empty.log", "empty file")
    ]


def test_a_file_belongs_to_the_first_format_that_takes_it(tmp_path: Path) -> None:
    """A training entry's JSON file is not read as an inference entry, although it has a latency."""
    (tmp_path / "a.json").write_text('{"latency": 1.0, "top1Accuracy": 95.0}')
    (tmp_path / "a.tsv").write_text("epoch\thours\ttop1Accuracy\n1\t1\t95\n")
    (entry,) = read_sources([tmp_path]).entries
    assert (entry.benchmark, entry.inference) == ("CIFAR10", None)
