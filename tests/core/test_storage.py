"""Storage that is full or away is waited for; nothing is torn, repeated or lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.run_factory import Clock

from aiperf_hpc.errors import JournalError, StorageError
from aiperf_hpc.journal import JournalReader, JournalWriter
from aiperf_hpc.records import PrimaryHeartbeat, StopRequested
from aiperf_hpc.storage import PASSING, Patience, at_once


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

    def patience(self, give_up: bool = False) -> Patience:
        return Patience(lambda: give_up, clock=self)


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


def test_an_error_that_does_not_pass_is_said_at_once() -> None:
    time = Time()
    with pytest.raises(StorageError, match="cannot write a file: Permission denied"):
        time.patience()(Disk(errno.EACCES), "a file")
    assert time.pauses == []


def test_waiting_ends_when_it_is_pointless() -> None:
    with pytest.raises(StorageError, match="cannot write a file: No space left on device"):
        Time().patience(give_up=True)(Disk(errno.ENOSPC), "a file")


def test_without_patience_the_first_error_is_the_last() -> None:
    with pytest.raises(StorageError, match="Stale file handle"):
        at_once(Disk(errno.ESTALE, errno.ESTALE), "a file")
    assert at_once(Disk(), "a file") == "written"


def test_a_journal_on_a_disk_that_fills_and_empties_again_has_every_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes part of a line, then nothing, then fails to sync, then works."""
    real_write, real_sync = os.write, os.fsync
    troubles = ["part", "full", "sync", "part", None]

    def write(file: int, data: bytes) -> int:
        trouble = troubles[0] if troubles else None
        if trouble == "full":
            troubles.pop(0)
            raise OSError(errno.ENOSPC, "No space left on device")
        if trouble == "part":
            troubles.pop(0)
            return real_write(file, data[: len(data) // 2])
        return real_write(file, data)

    def sync(file: int) -> None:
        if troubles and troubles.pop(0) == "sync":
            raise OSError(errno.EIO, "Input/output error")
        real_sync(file)

    time = Time()
    path = tmp_path / "journal.jsonl"
    with JournalWriter(path, persist=time.patience()) as journal:
        journal.append(PrimaryHeartbeat())
        troubles[:] = ["part", "full", "sync", "part", None]
        monkeypatch.setattr(os, "write", write)
        monkeypatch.setattr(os, "fsync", sync)
        journal.append(StopRequested(reason="full"))
        journal.append(PrimaryHeartbeat())
    monkeypatch.undo()
    reader = JournalReader(path)
    assert [record.event.type for record in reader.read()] == [
        "primary_heartbeat",
        "stop_requested",
        "primary_heartbeat",
    ]
    assert reader.problems == []
    assert len(time.pauses) == 4


def test_a_journal_without_patience_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with JournalWriter(tmp_path / "journal.jsonl") as journal:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(JournalError, match=r"journal\.jsonl: No space left on device"):
            journal.append(PrimaryHeartbeat())
        monkeypatch.undo()


def test_a_journal_is_begun_or_continued_once_the_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A torn line is set aside in one file, however often that is tried."""
    real = os.open
    troubles = [errno.ENOSPC]

    def full(path: str, flags: int, mode: int = 0o777) -> int:
        if troubles:
            number = troubles.pop()
            raise OSError(number, os.strerror(number))
        return real(path, flags, mode)

    time, path = Time(), tmp_path / "folder" / "journal.jsonl"
    monkeypatch.setattr(os, "open", full)
    with JournalWriter(path, persist=time.patience()) as journal:
        journal.append(PrimaryHeartbeat())
    monkeypatch.undo()
    with path.open("ab") as file:
        file.write(b'{"v": 1, ')
    syncs = [errno.ENOSPC, errno.ENOSPC]

    def sync(file: int) -> None:
        if syncs:
            number = syncs.pop()
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", sync)
    with JournalWriter(path, persist=time.patience()) as journal:
        journal.append(PrimaryHeartbeat())
    reader = JournalReader(path)
    assert [record.seq for record in reader.read()] == [0, 1]
    assert reader.problems == []
    assert len(time.pauses) == 3
    (torn,) = path.parent.glob("*.torn-*")
    assert torn.read_bytes() == b'{"v": 1, '
