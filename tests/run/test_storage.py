"""Storage that is full or away is waited for; nothing is torn, repeated or lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.support.clock import Clock
from tests.support.damage import failing

from aiperf_hpc.errors import StorageError
from aiperf_hpc.run.journal import JournalReader, JournalWriter
from aiperf_hpc.run.records import PrimaryHeartbeat, StopRequested
from aiperf_hpc.run.storage import (
    PASSING,
    PROMPT_SECONDS,
    BackoffRetry,
    GrowingFile,
    Retry,
    Wait,
    no_retry,
)
from aiperf_hpc.untrusted.files import regular_descriptor


class Disk:
    """An action that fails a number of times."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)
        self.done = 0

    def __call__(self) -> str:
        if self.errors:
            number = self.errors.pop(0)
            raise OSError(number, os.strerror(number))
        self.done += 1
        return "written"


class Time(Clock):
    """Pauses that take no time but are counted."""

    def patience(self, give_up: bool = False) -> BackoffRetry:
        return BackoffRetry(lambda: give_up, clock=self)


def test_a_full_disk_is_waited_for_with_longer_and_longer_pauses() -> None:
    time, disk = Time(), Disk(*[errno.ENOSPC] * 7)
    patience = time.patience()
    assert patience(disk, "a file") == "written"
    assert disk.done == 1
    assert time.pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert patience.waited == sum(time.pauses)


@pytest.mark.parametrize("number", sorted(PASSING))
def test_what_a_file_server_that_restarts_answers_passes(number: int) -> None:
    disk = Disk(number)
    assert Time().patience()(disk, "a file") == "written"


@pytest.mark.parametrize(
    ("retry", "number", "why"),
    [
        (Time().patience(), errno.EACCES, "Permission denied"),
        (Time().patience(give_up=True), errno.ENOSPC, "No space left on device"),
        (no_retry, errno.ESTALE, "Stale file handle"),
    ],
)
def test_an_error_that_does_not_pass_or_is_given_up_is_reported(
    retry: Retry, number: int, why: str
) -> None:
    disk = Disk(number)
    with pytest.raises(StorageError, match=f"cannot write a file: {why}"):
        retry(disk, "a file")
    assert disk.done == 0


def test_a_journal_on_a_disk_that_fills_and_empties_again_has_every_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes part of a line, then nothing, then fails to sync, then works."""
    whole, full = os.pwrite, failing(os.pwrite, errno.ENOSPC)

    def part(file: int, data: bytes, offset: int) -> int:
        return whole(file, data[: len(data) // 2], offset)

    writes = iter([part, full, whole, part, whole, whole])
    time = Time()
    path = tmp_path / "journal.jsonl"
    with JournalWriter(path, retry=time.patience()) as journal:
        journal.append(PrimaryHeartbeat())
        monkeypatch.setattr(os, "pwrite", lambda *arguments: next(writes)(*arguments))
        monkeypatch.setattr(os, "fsync", failing(os.fsync, errno.EIO))
        journal.append(StopRequested(reason="full"))
        journal.append(PrimaryHeartbeat())
    monkeypatch.undo()
    assert list(writes) == []
    reader = JournalReader(path)
    assert [record.event.type for record in reader.read()] == [
        "primary_heartbeat",
        "stop_requested",
        "primary_heartbeat",
    ]
    assert reader.problems == []
    assert len(time.pauses) == 4


def test_a_wait_is_told_while_it_lasts_and_noted_once_afterwards() -> None:
    time = Time()
    patience = time.patience()
    began, why = time.now, "cannot write a file: No space left on device"
    disk = Disk(*[errno.ENOSPC] * 3)

    def action() -> str:
        if len(disk.errors) == 1:
            waiting = patience.waiting
            assert waiting is not None
            assert (waiting.started_utc, waiting.seconds, waiting.reason) == (began, 0.75, why)
            assert patience.take() == []
        return disk()

    patience(action, "a file")
    assert patience.waiting is None
    assert patience.take() == [Wait(began, 1.75, why)]
    assert patience.take() == []
    patience(Disk(), "a file that can be written")
    assert patience.take() == []


def test_a_call_that_hangs_is_told_while_it_does() -> None:
    time = Time()
    patience = time.patience()

    def hang() -> str:
        time.now += 30.0
        waiting = patience.waiting
        assert waiting is not None
        assert (waiting.seconds, waiting.reason) == (25.0, "cannot read a file: no answer")
        return "read"

    patience(hang, "a file", "read")
    (wait,) = patience.take()
    assert wait.seconds == patience.waited == 25.0


def test_waits_of_threads_that_overlap_are_one_from_the_first_to_the_last() -> None:
    time = Time()
    patience = time.patience()
    began = time.now

    def pulse() -> str:
        time.now += 30.0
        assert patience.waited == 60.0 - PROMPT_SECONDS
        return "written"

    def trainer() -> str:
        time.now += 30.0
        patience(pulse, "a file of another thread, which begins later and ends first")
        assert patience.take() == []
        time.now += 2.0
        return "written"

    patience(trainer, "a file")
    assert patience.take() == [
        Wait(began + PROMPT_SECONDS, 62.0 - PROMPT_SECONDS, "cannot write a file: no answer")
    ]
    assert patience.waited == 62.0 - PROMPT_SECONDS


def test_reading_waits_for_a_server_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, time = tmp_path / "journal.jsonl", Time()
    with JournalWriter(path) as writer:
        writer.append(PrimaryHeartbeat())
    away = failing(regular_descriptor, errno.EIO, errno.ESTALE)
    monkeypatch.setattr("aiperf_hpc.run.journal.regular_descriptor", away)
    reader = JournalReader(path, retry=time.patience())
    assert len(list(reader.read())) == 1
    assert time.pauses == [0.25, 0.5]


@pytest.fixture
def growing(tmp_path: Path) -> GrowingFile:
    file = GrowingFile(tmp_path / "file")
    file.add(b"one\n")
    return file


def test_an_addition_that_failed_is_there_once_though_the_file_seems_longer(
    growing: GrowingFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an NFS client says after it could not write: everything is there; it is not."""

    def lost(file: int, data: bytes, offset: int) -> int:
        os.ftruncate(file, offset + len(data))  # Zeros.
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lost)
        for _ in range(2):
            with pytest.raises(OSError, match="Stale"):
                growing.add(b"two, longer\n")
    growing.add(b"two\n")
    assert (tmp_path / "file").read_bytes() == b"one\ntwo\n"


def test_what_failed_to_be_added_can_be_cut_off(
    growing: GrowingFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(os.fsync, errno.EIO))
        with pytest.raises(OSError, match="Input/output"):
            growing.add(b"two\n")
    growing.cut()
    assert (tmp_path / "file").read_bytes() == b"one\n"


def test_a_handle_that_can_be_written_but_not_asked_is_kept(
    growing: GrowingFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS handles are whose export was taken back and offered again."""

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", failing(os.fstat, *[errno.ESTALE] * 9))
        growing.add(b"two\n")
        growing.add(b"three\n")
    assert (tmp_path / "file").read_bytes() == b"one\ntwo\nthree\n"


@pytest.mark.parametrize(("number", "waits"), [(errno.ESTALE, True), (errno.EBADF, False)])
def test_a_handle_that_stays_bad_is_replaced(
    growing: GrowingFile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    waits: bool,
) -> None:
    """As when a server's file system is put back from a backup; or its state is lost."""
    really, opened = os.pwrite, os.open(tmp_path / "file", os.O_WRONLY)
    os.close(opened)  # The number that the next handle has.

    def stale(file: int, data: bytes, offset: int) -> int:
        if file != opened:
            raise OSError(number, os.strerror(number))
        return really(file, data, offset)

    monkeypatch.setattr(os, "pwrite", stale)
    patience = Time().patience()
    patience(lambda: growing.add(b"two\n"), "a file")
    growing.add(b"three\n")
    assert (tmp_path / "file").read_bytes() == b"one\ntwo\nthree\n"
    assert (patience.waited > 0) == waits


def test_a_file_that_was_replaced_by_a_copy_is_gone_on_with(
    growing: GrowingFile, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes((tmp_path / "file").read_bytes())
    copy.replace(tmp_path / "file")
    growing.add(b"two\n")
    assert (tmp_path / "file").read_bytes() == b"one\ntwo\n"


@pytest.mark.parametrize("content", [b"", b"one", b"one\nand more\n"])
def test_a_file_that_is_not_as_it_was_left_is_not_written(
    growing: GrowingFile, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(
        StorageError, match=rf"file has {len(content)} bytes.* wrote 4: another process"
    ):
        growing.add(b"two\n")
    assert (tmp_path / "file").read_bytes() == content


def test_a_file_that_was_removed_is_not_made_again(growing: GrowingFile, tmp_path: Path) -> None:
    (tmp_path / "file").unlink()
    with pytest.raises(FileNotFoundError):
        growing.add(b"two\n")
    assert not (tmp_path / "file").exists()


def test_a_journal_is_begun_or_continued_once_the_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A torn line is set aside in one file, however often that is tried."""
    time, path = Time(), tmp_path / "folder" / "journal.jsonl"
    monkeypatch.setattr(os, "open", failing(os.open, errno.ENOSPC))
    with JournalWriter(path, retry=time.patience()) as journal:
        journal.append(PrimaryHeartbeat())
    monkeypatch.undo()
    with path.open("ab") as file:
        file.write(b'{"v": 1, ')
    monkeypatch.setattr(os, "fsync", failing(os.fsync, errno.ENOSPC, errno.ENOSPC))
    with JournalWriter(path, retry=time.patience()) as journal:
        journal.append(PrimaryHeartbeat())
    reader = JournalReader(path)
    assert [record.seq for record in reader.read()] == [0, 1]
    assert reader.problems == []
    assert len(time.pauses) == 3
    (torn,) = path.parent.glob("*.torn-*")
    assert torn.read_bytes() == b'{"v": 1, '


def test_a_wait_that_was_given_up_is_noted_too() -> None:
    time = Time()
    patience = BackoffRetry(lambda: bool(time.pauses), clock=time)
    with pytest.raises(StorageError):
        patience(Disk(*[errno.ENOSPC] * 9), "a file")
    assert [wait.seconds for wait in patience.take()] == [0.25]
