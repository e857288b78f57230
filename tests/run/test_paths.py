from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from tests.support.clock import Clock
from tests.support.damage import failing

from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.run.storage import BackoffRetry


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_layout_is_what_the_design_says(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)

    places = {
        "run.yaml": paths.manifest,
        "primary/journal.jsonl": paths.primary_journal,
        "replicas/r0/0.0/journal.jsonl": paths.replica_journal("r0"),
        "replicas/r0/0.0/study.log": paths.study("r0"),
        "candidates/abc.json": paths.graph("abc"),
        "candidates/p1.safetensors": paths.candidate("p1"),
        "report/report.html": paths.report_html,
        "report/report.json": paths.report_json,
    }
    assert all(path == tmp_path / name for name, path in places.items())
    below = [name for name in vars(RunPaths) if isinstance(getattr(paths, name), Path)]
    named = {getattr(paths, name) for name in below}
    assert len(named) == len(below) > 20


def test_journals_are_those_that_exist_the_primarys_first(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    assert list(paths.journals()) == []
    expected = [
        paths.primary_journal,
        paths.replica_journal("a"),
        paths.search_journal("a", 0),
        paths.replica_journal("b"),
    ]
    others = [
        paths.study("a"),
        paths.replica_log("a"),
        paths.replica_journal("a").with_name("journal.jsonl.torn-1"),
        paths.trained("a", "t1"),
    ]
    for path in (*expected[::-1], *others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert list(paths.journals()) == expected


@pytest.mark.parametrize("content", ["text é", b"\x00bytes", ""])
def test_a_file_is_written_whole_with_its_folder_and_nothing_else(
    tmp_path: Path, content: str | bytes
) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_whole(path, "long old content")
    write_whole(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert files(path.parent) == ["file"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    write_whole(tmp_path / "file", "old")
    monkeypatch.setattr(os, step, failing(getattr(os, step), errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"
    assert files(tmp_path) == ["file"]


def test_a_rename_that_a_restarted_server_was_told_twice_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = Path.replace

    def twice(source: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "replace", really)
        really(source, target)
        return really(source, target)

    monkeypatch.setattr(Path, "replace", twice)
    patience = BackoffRetry(lambda: False, clock=Clock())
    patience(lambda: write_whole(tmp_path / "file", "new"), "a file")
    assert patience.waited > 0
    assert (tmp_path / "file").read_text() == "new"
    assert files(tmp_path) == ["file"]


def test_the_content_is_on_stable_storage_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, bool]] = []
    path = tmp_path / "file"
    monkeypatch.setattr(
        os, "fsync", lambda file: seen.append((os.fstat(file).st_size, path.exists()))
    )
    write_whole(path, "12345")
    assert seen == [(5, False)]


def test_a_reader_never_sees_a_part_of_what_threads_write_at_once(tmp_path: Path) -> None:
    path, contents = tmp_path / "file", [letter * 100_000 for letter in "abcd"]
    write_whole(path, contents[0])
    errors: list[BaseException] = []

    def work(content: str) -> None:
        try:
            for _ in range(20):
                write_whole(path, content)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert path.read_text() in contents
    for thread in threads:
        thread.join()
    assert errors == []
    assert files(tmp_path) == ["file"]
