"""What becomes of a file that is lost in part or as a whole."""

from __future__ import annotations

import os
from pathlib import Path


def gone(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def longer(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0\xff")


def flip(path: Path, place: int = -5) -> None:
    """Change one bit, near the end if no place is given."""
    content = bytearray(path.read_bytes())
    content[place] ^= 64
    path.write_bytes(content)
