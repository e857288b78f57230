"""Whether a run could be written at a place: found out by trying, without a trace."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aiperf_hpc.errors import RunDirectoryError
from aiperf_hpc.primary.doctor import examine_storage
from aiperf_hpc.primary.doctor_rows import Check
from aiperf_hpc.run.storage import nearest_existing, require_writable


def writable(folder: Path) -> Check:
    (check,) = (c for c in examine_storage(folder) if c.name == "writable")
    return check


def test_a_place_that_can_be_written_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, tmp_path / "a" / "b", Path("relative/run"), Path(".")):
        require_writable(folder)
        check = writable(folder)
        assert (check.found, check.remedy) == (True, "")
        assert check.detail.startswith(f"{tmp_path}: ")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    require_writable(tmp_path / "link" / "run")
    assert nearest_existing(Path("link/run")) == tmp_path / "link"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def through_a_file(folder: Path) -> tuple[Path, str]:
    (folder / "file").touch()
    return folder / "file" / "run", f"{folder}/file is a file"


def dangling(folder: Path) -> tuple[Path, str]:
    (folder / "link").symlink_to("nowhere")
    return folder / "link", f"{folder}/link is a link to nowhere, which does not exist"


def link_to_a_file(folder: Path) -> tuple[Path, str]:
    (folder / "file").touch()
    (folder / "link").symlink_to("file")
    return folder / "link", f"{folder}/link is a link to file"


def made_up_by_the_kernel(folder: Path) -> tuple[Path, str]:
    return Path("/proc/x"), "cannot create files in /proc: No such file or directory"


def not_permitted(folder: Path) -> tuple[Path, str]:
    (folder / "closed").mkdir(mode=0o500)
    return folder / "closed" / "run", f"cannot create files in {folder}/closed: Permission denied"


def not_to_be_entered(folder: Path) -> tuple[Path, str]:
    (folder / "closed" / "inner").mkdir(parents=True)
    (folder / "closed").chmod(0)
    return folder / "closed" / "inner", "cannot create files in"


@pytest.mark.parametrize(
    "make",
    [
        through_a_file,
        dangling,
        link_to_a_file,
        made_up_by_the_kernel,
        not_permitted,
        not_to_be_entered,
    ],
)
def test_a_place_that_cannot_says_why_to_doctor_and_to_start(
    make: Callable[[Path], tuple[Path, str]], unprivileged: Path
) -> None:
    folder, why = make(unprivileged)
    with pytest.raises(RunDirectoryError) as refused:
        require_writable(folder)
    said = str(refused.value)
    assert said.startswith(f"cannot write the run directory {folder}: {why}")
    assert said.endswith("; name another one with --run-dir")
    check = writable(folder)
    assert not check.found
    assert said == f"{check.detail}; {check.remedy}"


def test_a_file_system_for_reading_only_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, mode: int = 0o777) -> None:
        raise OSError(30, os.strerror(30), path)

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(RunDirectoryError, match=f"in {tmp_path}: Read-only file system; name"):
        require_writable(tmp_path / "run")
