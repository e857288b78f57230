"""Small files of ``/proc`` and ``/sys``, below a root that tests may choose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def text_of(path: Path) -> str:
    """Return what a file says, without the line's end. Raises OSError."""
    return path.read_text("utf-8", errors="replace").strip().strip("\0")


def number_of(path: Path) -> int:
    """Return the number that a file says. Raises OSError and ValueError."""
    return int(text_of(path))


def text_or_none(path: Path) -> str | None:
    """Return what a file says; None where it is not there or says nothing."""
    try:
        return text_of(path) or None
    except OSError:
        return None


def entries(folder: Path) -> list[Path]:
    """Return what is in a folder, by name; nothing where there is no such folder."""
    return sorted(folder.iterdir()) if folder.is_dir() else []


def cpus_of(ranges: str) -> list[int]:
    """Return the numbers of a list such as 0-3,8. Raises ValueError."""
    return [number for part in ranges.split(",") if part for number in _range(part)]


def _range(part: str) -> Iterator[int]:
    first, _, last = part.partition("-")
    yield from range(int(first), int(last or first) + 1)
