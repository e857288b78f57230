from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.clock import START, Clock

from aiperf_hpc.errors import JournalError
from aiperf_hpc.run.journal import JournalReader, JournalWriter
from aiperf_hpc.run.records import PrimaryHeartbeat, Record, RunEnded, StopRequested


def note(text: str) -> StopRequested:
    return StopRequested(reason=text)


def texts(records: list[Record]) -> list[str]:
    return [record.event.reason for record in records if isinstance(record.event, StopRequested)]


def write(path: Path, *reasons: str) -> None:
    with JournalWriter(path) as journal:
        for reason in reasons:
            journal.append(note(reason))


def read(path: Path) -> tuple[list[str], list[str]]:
    reader = JournalReader(path)
    return texts(list(reader.read())), [str(problem) for problem in reader.problems]


def replace_line(path: Path, number: int, line: bytes) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number - 1] = line + b"\n" if line else b""
    path.write_bytes(b"".join(lines))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "journal.jsonl"


def test_records_have_their_writers_times_and_follow_each_other(path: Path) -> None:
    clock = Clock(START + 10.0)
    with JournalWriter(path, clock=clock) as journal:
        first = journal.append(note("a"))
        clock.advance(1.0)
        second = journal.append(note("b"))
    up = clock.monotonic() - 1.0
    assert (first.seq, first.utc, first.mono) == (0, START + 10.0, up)
    assert (second.seq, second.utc, second.mono) == (1, START + 11.0, up + 1.0)
    assert list(JournalReader(path).read()) == [first, second]


def test_a_record_is_one_line_of_json(path: Path) -> None:
    write(path, "two\nlines\u2028and\r more")
    (line,) = path.read_bytes().splitlines()
    assert json.loads(line)["event"]["reason"] == "two\nlines\u2028and\r more"


def test_a_reader_follows_a_file_that_grows(path: Path) -> None:
    reader = JournalReader(path)
    assert (list(reader.read()), reader.lost) == ([], "")
    with JournalWriter(path) as journal:
        for reason in ("a", "b", "c"):
            journal.append(note(reason))
            assert texts(list(reader.read())) == [reason]
            assert list(reader.read()) == []
    assert (reader.problems, reader.torn) == ([], False)


def test_a_reader_that_stops_early_continues_where_it_stopped(path: Path) -> None:
    write(path, "a", "b", "c")
    reader = JournalReader(path)
    assert texts([next(reader.read())]) == ["a"]
    assert texts(list(reader.read())) == ["b", "c"]
    assert reader.problems == []


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_journal_read_in_pieces_of_any_size_gives_its_records_once(
    data: st.DataObject, tmp_path: Path
) -> None:
    whole = tmp_path / "whole.jsonl"
    if not whole.exists():
        write(whole, "a", "é" * 40, "c", "d")
    content = whole.read_bytes()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=8)))
    growing = tmp_path / "growing.jsonl"
    growing.unlink(missing_ok=True)
    reader = JournalReader(growing)
    found: list[str] = []
    for cut in [*cuts, len(content)]:
        growing.write_bytes(content[:cut])
        found += texts(list(reader.read()))
        assert reader.torn == (not content[:cut].endswith(b"\n") and cut > 0)
    assert found == ["a", "é" * 40, "c", "d"]
    assert reader.problems == []


@pytest.mark.parametrize("before", [[], ["a"]])
def test_continuing_behind_a_torn_line_sets_the_piece_aside(path: Path, before: list[str]) -> None:
    write(path, *before, "b")
    content = path.read_bytes()
    path.write_bytes(content[:-7])
    reader = JournalReader(path)
    assert texts(list(reader.read())) == before
    write(path, "c")
    assert texts(list(reader.read())) == ["c"]
    assert read(path) == ([*before, "c"], [])
    (aside,) = path.parent.glob("journal.jsonl.torn-*")
    assert aside.read_bytes() == content.splitlines(keepends=True)[-1][:-7]
    assert aside.suffix != ".jsonl"  # It is not taken for a journal.


def test_continuing_a_whole_file_loses_nothing(path: Path) -> None:
    write(path, "a", "b")
    write(path, "c")
    write(path)
    assert read(path) == (["a", "b", "c"], [])
    assert list(path.parent.iterdir()) == [path]


NOTE = {"type": "stop_requested", "reason": "b"}
SECOND = {"v": 2, "seq": 1, "utc": 1.0, "mono": 1.0, "event": NOTE}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b" ", ""),
        (b"{", ""),
        (b"null", ""),
        (b"\x00\xff\xfe", ""),
        (b'{"v":1}', ""),
        (b'{"v":1,"seq":1,"utc":1,"mono":1}', ""),
        # Of a newer version.
        (json.dumps(SECOND | {"v": 3}).encode(), "v: should be 1 or 2"),
        (json.dumps(SECOND | {"v": 3, "seq": -1}).encode(), "v: should be 1 or 2"),
        (json.dumps(SECOND | {"event": {"type": "teleported"}}).encode(), "event: .*'teleported'"),
    ],
)
def test_a_line_that_is_no_record_is_reported_by_file_and_line_and_the_rest_kept(
    path: Path, line: bytes, problem: str
) -> None:
    write(path, "a", "b", "c", "d")
    replace_line(path, 2, line)
    found, (only,) = read(path)
    assert found == ["a", "c", "d"]
    assert re.match(f"{path}, line 2: not a record: {problem}", only)


@pytest.mark.parametrize(
    ("places", "said"), [((0, 2), "record 2 instead of 1"), ((0, 0), "record 0 instead of 1")]
)
def test_a_lost_or_repeated_line_is_reported(
    path: Path, places: tuple[int, ...], said: str
) -> None:
    write(path, "a", "b", "c")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[place] for place in places))
    assert read(path) == (["abc"[place] for place in places], [f"{path}, line 2: {said}"])


@pytest.mark.parametrize("line", [b"", b"{"], ids=["lost", "corrupt"])
def test_continuing_a_damaged_file_adds_no_problem_of_its_own(path: Path, line: bytes) -> None:
    write(path, "a", "b", "c")
    replace_line(path, 2, line)
    before = read(path)[1]
    assert len(before) == 1
    write(path, "d")
    assert read(path) == (["a", "c", "d"], before)


def test_threads_may_share_a_writer(path: Path) -> None:
    def work(name: str) -> None:
        for number in range(50):
            journal.append(note(f"{name}{number}"))

    with JournalWriter(path) as journal:
        threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found, problems = read(path)
    assert problems == []
    assert [t for t in found if t[0] == "a"] == [f"a{n}" for n in range(50)]
    assert [t for t in found if t[0] == "b"] == [f"b{n}" for n in range(50)]


def _full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_no_torn_line_and_the_writer_usable(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_write = os.pwrite

    def half(file: int, line: bytes, offset: int) -> int:
        return really_write(file, line[: len(line) // 2], offset)

    with JournalWriter(path) as journal:
        journal.append(note("a"))
        for name, broken in (("pwrite", _full), ("fsync", _full), ("pwrite", half)):
            before = path.read_bytes()
            with monkeypatch.context() as patch:
                patch.setattr(os, name, broken)
                with pytest.raises(JournalError, match=rf"{path}: (?i:no space left)"):
                    journal.append(note("lost"))
            assert path.read_bytes() == before
        journal.append(note("b"))
    assert read(path) == (["a", "b"], [])


def test_an_interrupt_while_writing_leaves_the_journal_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    with JournalWriter(path) as journal:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", interrupted)
            with pytest.raises(KeyboardInterrupt):
                journal.append(note("lost"))
        journal.append(RunEnded(reason="interrupted"))
    reader = JournalReader(path)
    assert [record.event for record in reader.read()] == [RunEnded(reason="interrupted")]
    assert reader.problems == []


def test_a_record_is_on_stable_storage_when_append_returns(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    with JournalWriter(path) as journal:
        journal.append(PrimaryHeartbeat())
        assert synced == [path.stat().st_size]


def test_a_folder_that_cannot_be_made_is_an_error_of_the_journal(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(JournalError, match=r"cannot write the journal .*file/journal\.jsonl"):
        JournalWriter(tmp_path / "file" / "journal.jsonl")


def test_a_closed_writer_writes_no_more(path: Path) -> None:
    journal = JournalWriter(path)
    journal.append(note("a"))
    journal.close()
    other = os.open(path.parent / "other", os.O_RDWR | os.O_CREAT)  # Has the freed number now.
    with pytest.raises(JournalError, match="is closed"):
        journal.append(note("b"))
    journal.close()
    assert os.fstat(other).st_size == 0
    os.close(other)
    assert read(path) == (["a"], [])


def test_zeros_of_a_cache_are_read_past_and_zeros_of_a_file_are_reported(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS client gives zeros for what it has not fetched yet; then the file is read again."""
    with JournalWriter(path) as journal:
        journal.append(note("a"))
        whole = path.read_bytes()
        path.write_bytes(b"\0" * len(whole))
        path.write_bytes(path.read_bytes()[:-1] + b"\n")
        asked = []

        def fetch(*what: int) -> None:
            asked.append(what)
            if len(asked) == 2:
                path.write_bytes(whole)

        monkeypatch.setattr(os, "posix_fadvise", fetch)
        reader = JournalReader(path)
        assert len(list(reader.read())) == 1
        assert (reader.problems, len(asked)) == ([], 2)
        assert asked[0][1:] == (0, 0, os.POSIX_FADV_DONTNEED)  # All of the file.
        path.write_bytes(b"\0" * 5 + b"\n")
        reader = JournalReader(path)
        assert list(reader.read()) == []
        assert "not a record" in reader.problems[0].what


def test_a_line_without_an_end_is_refused_and_memory_is_bounded(path: Path) -> None:
    write(path, "one")
    with path.open("ab") as file:
        file.truncate(10**12)  # Of zeros that take no room.
    with pytest.raises(JournalError, match=r"not a journal: line 2 has more than 16,777,216 bytes"):
        read(path)


def test_a_journal_is_read_in_pieces_whose_lines_are_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = [f"{number:03d}" + number * "x" for number in range(200)]
    write(path, *reasons)
    longest = max(map(len, path.read_bytes().splitlines(keepends=True)))
    for most in (longest, longest + 1, 3 * longest, path.stat().st_size):
        monkeypatch.setattr("aiperf_hpc.run.journal.MOST_LINE_BYTES", most)
        assert read(path) == (reasons, [])


@pytest.mark.parametrize("until", [0, 3])
def test_a_reader_of_some_lines_ignores_the_rest_of_a_large_journal(
    path: Path, monkeypatch: pytest.MonkeyPatch, until: int
) -> None:
    write(path, *(f"{number:03d}" for number in range(200)))
    monkeypatch.setattr("aiperf_hpc.run.journal.MOST_LINE_BYTES", 2000)
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines[0]) * until < 2000 < path.stat().st_size / 2
    reader = JournalReader(path, until=until)
    assert reader.hash.hexdigest() == hashlib.sha256().hexdigest()
    assert texts(list(reader.read())) == [f"{number:03d}" for number in range(until)]
    assert list(reader.read()) == []
    assert reader.line == until
    assert reader.hash.hexdigest() == hashlib.sha256(b"".join(lines[:until])).hexdigest()


def test_a_file_of_lines_that_are_no_records_is_no_journal(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\n" * 10_001)
    with pytest.raises(JournalError, match="10,000 lines are malformed or misplaced"):
        read(path)


@pytest.mark.parametrize("what", ["fifo", "device", "folder"])
def test_what_is_no_file_is_no_journal(path: Path, what: str) -> None:
    path.parent.mkdir(parents=True)
    if what == "fifo":
        os.mkfifo(path)
    elif what == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(
        JournalError, match=r"cannot read the journal .*: (not a regular file|a link)"
    ):
        read(path)
    if what == "folder":
        with pytest.raises(JournalError, match="cannot"):
            JournalWriter(path)
