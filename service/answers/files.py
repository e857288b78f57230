"""Files of a run's report, looked up by name in a listing of its folder."""

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
    """Name of the file."""
    bytes: int
    """Size of the file in bytes."""
    modified_utc: float
    """Modification time in UTC seconds."""
    media_type: str
    """Media type of the file."""


class Files(Answer):
    """Files of the report, and run.yaml."""

    files: tuple[File, ...]
    """Files sorted by name; those of the report are absent until it is written."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file that may be served."""

    path: Path
    file: File


def files(view: RunView) -> Files:
    """Return the names of the report's files, and run.yaml."""
    return Files(files=tuple(found.file for found in _found(view)))


@dataclass(frozen=True, slots=True)
class FileQuestion:
    """Query for one file."""

    name: str

    def __call__(self, view: RunView) -> Found:
        for found in _found(view):
            if found.file.name == self.name:
                return _in_bounds(found)
        raise not_found(f"the run has no file {self.name!r} in its report")


def _found(view: RunView) -> list[Found]:
    """Return the regular files; symbolic links are omitted."""
    folder = view.paths.report
    names = sorted(os.listdir(folder)) if folder.is_dir() and not folder.is_symlink() else []
    paths = [view.paths.manifest, *(folder / name for name in names if name[:1] != ".")]
    return [Found(path, _file(path, status)) for path in paths if (status := _regular(path))]


def _in_bounds(found: Found) -> Found:
    """Reject large files: a sparse file of a terabyte uses no space on disk."""
    if found.file.bytes > MOST_REPORT_BYTES:
        raise not_found(
            f"{found.file.name!r} has {found.file.bytes:,} bytes; files of more than "
            f"{MOST_REPORT_BYTES:,} are not served"
        )
    return found


def _regular(path: Path) -> os.stat_result | None:
    try:
        status = path.lstat()
        path.name.encode()
    except (FileNotFoundError, UnicodeEncodeError):
        return None  # The file was just removed, or its name cannot be part of a URL.
    return status if stat.S_ISREG(status.st_mode) else None


def _file(path: Path, status: os.stat_result) -> File:
    return File(
        name=path.name,
        bytes=status.st_size,
        modified_utc=status.st_mtime,
        media_type=TYPES.get(path.suffix, "application/octet-stream"),
    )
