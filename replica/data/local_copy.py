"""Local copy of a dataset: on a disk of the node, or in its page cache.

The time of copying is part of the run. It is recorded, and never subtracted.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.datasets import load_dataset_manifest
from aiperf_hpc.errors import DatasetError, restated
from aiperf_hpc.formatting import size
from aiperf_hpc.replica.data.progress import in_threads
from aiperf_hpc.replica.data.sharded.dataset import HEAD
from aiperf_hpc.replica.data.staging import check_space

CHUNK = 8 << 20
"""Number of bytes per read."""
LOCK = ".lock"
STREAMS = 16
"""Maximum number of files copied concurrently: more do not make a file server faster."""


class LocalCopy(NamedTuple):
    """Configuration for reading a dataset's copy, and the cost of copying."""

    config: DatasetConfig
    seconds: float = 0.0
    bytes: int = 0
    """Number of bytes copied or read; 0 if the copy was already complete."""


def local_copy(config: DatasetConfig, cores: int) -> LocalCopy:
    """Copy a dataset's folder to the location that ``config.cache`` selects.

    All ranks and replicas of a node may call it. With ``disk`` the first one copies and the others
    wait for the copy, which remains for the next attempt or run. With ``memory`` all of them read
    the dataset, later ones from the page cache.

    Raises:
        DatasetError: the folder is not a prepared dataset, or cannot be copied, or there is not
            enough space or memory.
    """
    if config.cache == "none" or config.path is None:
        return LocalCopy(config)
    began = time.monotonic()
    load_dataset_manifest(config.path, config.name)
    streams = min(cores, STREAMS)
    what = f"cannot copy the dataset in {config.path} to its cache"
    with restated(what, DatasetError, caught=OSError):
        files = _files(config.path)
        if config.cache_path is None:
            near, moved = config, _read(files, streams)
        else:
            target = config.cache_path / f"{config.name}-{_fingerprint(files)}"
            near = config.model_copy(update={"path": target})
            moved = _copy(files, target, streams)
    return LocalCopy(near, time.monotonic() - began, moved)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and path.name[0] != ".")


def _fingerprint(files: list[Path]) -> str:
    """Return a digest of a folder's file names, file sizes and the content of small files."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}\t{path.stat().st_size}\t".encode())
        if path.stat().st_size <= HEAD:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _read(files: list[Path], streams: int) -> int:
    """Read all files once into the page cache; return the number of bytes."""
    total = sum(path.stat().st_size for path in files)
    free = psutil.virtual_memory().available  # the page cache is part of it
    if free < total:
        raise DatasetError(
            f"no memory for the dataset in {files[0].parent}: it needs {size(total)}, "
            f"{size(free)} are free; set dataset.cache to none or disk"
        )
    return sum(in_threads(lambda path, _: _read_file(path), files, streams))


def _read_file(path: Path) -> int:
    done = 0
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(CHUNK)
        while got := file.readinto(buffer):
            done += got
    return done


def _copy(files: list[Path], target: Path, streams: int) -> int:
    """Copy the missing files; return the number of bytes."""
    target.mkdir(parents=True, exist_ok=True)
    with (target / LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # On a local disk; released when the process exits.
        absent = [path for path in files if not _same(path, target / path.name)]
        check_space(target, sum(path.stat().st_size for path in absent))
        return sum(
            in_threads(lambda path, _: _copy_file(path, target / path.name), absent, streams)
        )


def _same(path: Path, copy: Path) -> bool:
    """Return whether a file and its copy have the same size and the same first bytes."""
    if not copy.exists() or copy.stat().st_size != path.stat().st_size:
        return False
    with path.open("rb") as one, copy.open("rb") as other:
        return one.read(HEAD) == other.read(HEAD)


def _copy_file(path: Path, copy: Path) -> int:
    partial = copy.with_name(f".{copy.name}.partial")
    try:
        shutil.copyfile(path, partial)
        size = partial.stat().st_size
        partial.rename(copy)
    finally:
        partial.unlink(missing_ok=True)
    return size
