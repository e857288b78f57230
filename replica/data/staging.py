"""Preparing a dataset's folder so that half of it never looks like all of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aiperf_hpc.errors import DatasetError


def _silent(line: str) -> None:
    del line


@dataclass(frozen=True, slots=True)
class Options:
    """How a dataset is prepared.

    ``shards`` is the number of training shards where a dataset has shards, chosen by the dataset
    when not given; ``cores`` bounds the threads; ``report`` takes lines of progress for people.
    """

    shards: int | None = None
    cores: int = 1
    report: Callable[[str], None] = _silent


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Give a new folder beside ``target`` to write into; it is renamed to ``target`` at the end.

    When the body raises, the folder is removed and ``target`` is as it was.

    Raises:
        DatasetError: ``target`` is there and not empty, or cannot be written (also when the body
            meets an OSError: it is to turn those of its source into DatasetErrors itself).
    """
    target = target.resolve()
    partial = target.with_name(f".{target.name}.partial-{os.uname().nodename}-{os.getpid()}")
    try:
        _refuse_filled(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        try:
            yield partial
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise DatasetError(f"cannot write the dataset to {target}: {reason(error)}") from None


def _refuse_filled(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise DatasetError(f"cannot write the dataset to {target}: it is a file, not a folder")
    for above in target.parents:
        if above.is_file():
            raise DatasetError(f"cannot write the dataset to {target}: {above} is a file")
    if target.is_dir() and any(target.iterdir()):
        raise DatasetError(
            f"cannot write the dataset to {target}: it is not empty; name a new folder"
        )


def check_space(folder: Path, needed: int) -> None:
    """Refuse to start what cannot end. ``needed`` is in bytes.

    Raises:
        DatasetError: the file system of ``folder`` has less than that to spare.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DatasetError(
            f"no space for the dataset in {folder.parent}: it needs {needed / 1e9:.1f} GB, "
            f"{free / 1e9:.1f} GB are free"
        )


def reason(error: OSError) -> str:
    """Say in words what an OSError is about, without its number."""
    return error.strerror or " ".join(str(error).split()) or type(error).__name__
