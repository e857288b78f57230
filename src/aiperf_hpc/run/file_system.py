"""The place that a run directory is asked for at: whether a run could be written there."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import psutil

from aiperf_hpc.errors import RunDirectoryError


def nearest_existing(folder: Path) -> Path:
    """Return ``folder``, or the nearest of its parents that is there, as an absolute path."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if os.path.lexists(path))


def require_writable(
    folder: Path, what: str = "the run directory", option: str = "--run-dir"
) -> None:
    """Make a folder with a file in it where ``folder`` is or would be, and remove both.

    Only trying says whether a file system is mounted for reading, has a quota, or makes no folders
    at all, as ``/proc``.

    Args:
        folder: what is to be written.
        what: what it is to the user.
        option: by which the user may name another one.

    Raises:
        RunDirectoryError: it cannot be done; the message says why.
    """

    def refused(why: str) -> RunDirectoryError:
        return RunDirectoryError(
            f"cannot write {what} {folder}: {why}; name another one with {option}"
        )

    place = nearest_existing(folder)
    if not place.is_dir():
        kind = f"a link to {os.readlink(place)}" if place.is_symlink() else "a file"
        missing = ", which is not there" if place.is_symlink() and not place.exists() else ""
        raise refused(f"{place} is {kind}{missing}")
    try:
        with (
            tempfile.TemporaryDirectory(prefix=".aiperf-", dir=place) as made,
            (Path(made) / "file").open("wb") as file,
        ):
            file.write(b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise refused(f"nothing can be made in {place}: {error.strerror}") from None


def free_bytes(folder: Path) -> int:
    """Return the bytes that may still be written at ``folder`` or its nearest parent."""
    return shutil.disk_usage(nearest_existing(folder)).free


def file_system_of(folder: Path) -> tuple[str, str]:
    """Return the type and mount point of the file system that holds an existing folder."""
    folder = Path(os.path.realpath(folder))
    best = ("unknown", "/")
    depth = -1
    for partition in psutil.disk_partitions(all=True):
        mount = Path(partition.mountpoint)
        if (mount == folder or mount in folder.parents) and len(mount.parts) > depth:
            best, depth = (partition.fstype, partition.mountpoint), len(mount.parts)
    return best
