"""Damage to files: missing, empty, truncated, extended or with a flipped bit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

Damage = Callable[[Path], object]
"""Damages a folder."""


def gone(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def longer(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0\xff")


def without_start(journal: Path) -> None:
    """Remove the records of a run's start and end from its primary's journal."""
    lines = journal.read_bytes().splitlines(keepends=True)
    lost = (b'"run_started"', b'"run_ended"')
    journal.write_bytes(b"".join(each for each in lines if not any(e in each for e in lost)))


def flip(path: Path, place: int = -5) -> None:
    """Change one bit, near the end if no place is given."""
    content = bytearray(path.read_bytes())
    content[place] ^= 64
    path.write_bytes(content)


def failing(action: Callable[..., T], *errors: int) -> Callable[..., T]:
    """Return an action that first fails with each of these errors."""
    left = list(errors)

    def act(*arguments: Any, **named: Any) -> T:  # noqa: ANN401 -- those of any action
        if left:
            number = left.pop(0)
            raise OSError(number, os.strerror(number))
        return action(*arguments, **named)

    return act


def removed(name: str) -> Damage:
    """Remove a file or a folder of a folder."""

    def remove(folder: Path) -> None:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove


def written(name: str, content: bytes | str = b"") -> Damage:
    """Write a file of a folder."""
    own = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(own)


def resized(name: str, size: int) -> Damage:
    """Cut a file of a folder to a size, or lengthen it by zeros."""
    return lambda folder: os.truncate(folder / name, size)
