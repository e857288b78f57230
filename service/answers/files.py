"""The files of a run's report: those that really lie there, found by name in a listing."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiperf_hpc.results.report.files import MOST_REPORT_BYTES
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.service.answers.base import Answer
from aiperf_hpc.service.problem import not_found

TYPES: Final = {
    ".html": "text/html",
    ".json": "application/json",
    ".yaml": "application/yaml",
    ".txt": "text/plain",
    ".svg": "image/svg+xml",
}


class File(Answer):
    """A file of the report."""

    name: str
    """The file's name."""
    bytes: int
    """Its size in bytes."""
    modified_utc: float
    """When it was written, UTC seconds."""
    media_type: str
    """What kind of file it is."""


class Files(Answer):
    """The files of the report, and run.yaml."""

    files: tuple[File, ...]
    """The files by their names; none of the report before it is written."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file that may be given."""

    path: Path
    file: File


def files(view: RunView) -> Files:
    """Return the files that may be given."""
    return Files(files=tuple(found.file for found in _found(view)))


@dataclass(frozen=True, slots=True)
class FileQuestion:
    """The question for one file."""

    name: str

    def __call__(self, view: RunView) -> Found:
        for found in _found(view):
            if found.file.name == self.name:
                return _in_bounds(found)
        raise not_found(f"the run has no file {self.name!r} in its report")


def _found(view: RunView) -> list[Found]:
    """Return the regular files; what is a link is not followed, nor named."""
    folder = view.paths.report
    names = sorted(os.listdir(folder)) if folder.is_dir() and not folder.is_symlink() else []
    paths = [view.paths.manifest, *(folder / name for name in names if name[:1] != ".")]
    return [Found(path, _file(path, status)) for path in paths if (status := _regular(path))]


def _in_bounds(found: Found) -> Found:
    """A stranger's file may have a terabyte, which takes no room where it is."""
    if found.file.bytes > MOST_REPORT_BYTES:
        raise not_found(
            f"{found.file.name!r} has {found.file.bytes:,} bytes; none of more than "
            f"{MOST_REPORT_BYTES:,} is given"
        )
    return found


def _regular(path: Path) -> os.stat_result | None:
    try:
        status = path.lstat()
        path.name.encode()
    except (FileNotFoundError, UnicodeEncodeError):
        return None  # It has just gone, or has a name that no address can have.
    return status if stat.S_ISREG(status.st_mode) else None


def _file(path: Path, status: os.stat_result) -> File:
    return File(
        name=path.name,
        bytes=status.st_size,
        modified_utc=status.st_mtime,
        media_type=TYPES.get(path.suffix, "application/octet-stream"),
    )
