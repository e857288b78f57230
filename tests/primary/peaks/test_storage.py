"""Reading files without the page cache, and the report if it cannot be bypassed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary.peaks.storage import BLOCK, Effort, measure_storage

TINY = Effort(bytes=4 * BLOCK, repetitions=3, seconds=0.001)


def test_a_file_is_written_read_and_removed(tmp_path: Path) -> None:
    found = measure_storage(None, tmp_path, TINY)
    assert list(tmp_path.iterdir()) == []
    assert (found.files, found.folder) == ("written for this", str(tmp_path))
    assert [reading.size for reading in found.readings] == ["1 reader", "4 readers", "16 readers"]
    for reading in found.readings:
        assert 0 < reading.worst <= reading.median <= reading.best
        assert (reading.repetitions, reading.amount) == (3, BLOCK)
    assert found.peak.median == max(reading.median for reading in found.readings)


def test_a_folders_own_files_are_read_and_stay(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "small").write_bytes(b"1" * 1000)
    (tmp_path / "part" / "large").write_bytes(os.urandom(4 * BLOCK + 1))
    found = measure_storage(tmp_path, Path("/nowhere"), TINY)
    assert found.files == "its own"
    assert (tmp_path / "part" / "large").stat().st_size == 4 * BLOCK + 1
    assert {path.name for path in tmp_path.iterdir()} == {"part", "small"}


def test_too_little_to_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1" * BLOCK)
    with pytest.raises(UsageError, match=r"the folder has 4 MiB in files .* 16 MiB are needed"):
        measure_storage(tmp_path, tmp_path, TINY)
    with pytest.raises(UsageError, match="no such folder"):
        measure_storage(tmp_path / "gone", tmp_path, TINY)


def test_too_little_room_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"free; twice .* are needed"):
        measure_storage(None, tmp_path, TINY._replace(bytes=2**60))


def test_without_direct_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS mounted by some options and FUSE refuse O_DIRECT with EINVAL."""
    opened = os.open

    def refuse(path: str, flags: int, *more: Any, **named: Any) -> int:  # noqa: ANN401 -- os.open's
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refuse)
    assert measure_storage(None, tmp_path, TINY).cache in ("dropped", "in use")
    # What the kernel has at hand at once after it was told to drop it is in memory.
    monkeypatch.setattr(os, "preadv", lambda *_: 1)
    assert measure_storage(None, tmp_path, TINY).cache == "in use"
