"""Access to vendors' programs and libraries and to files in ``/proc`` and ``/sys``."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from aiperf_hpc.errors import AIPerfError

TOOL_SECONDS = 10.0
"""Time limit of a vendor's program, which hangs if its driver does."""

Library: TypeAlias = Any
"""Python module of a vendor; none has type annotations."""
Handle: TypeAlias = Any
"""Handle of an accelerator in a vendor's module."""

T = TypeVar("T")


class AbsentError(AIPerfError):
    """A value is unavailable on this node; the message is the reason."""


def output_of(*command: str) -> str:
    """Return the standard output of a program.

    Raises:
        AbsentError: the program is not installed, fails or exceeds the time limit.
    """
    name = command[0]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=TOOL_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise AbsentError(f"{name} is not installed") from None
    except OSError as error:
        raise AbsentError(f"{name} cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise AbsentError(f"{name} did not respond within {TOOL_SECONDS:.0f} s") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[-1]
        raise AbsentError(f"{name} failed with status {done.returncode}: {said[:200]}")
    return done.stdout


class Probe:
    """Reads values one by one and records the reasons for missing ones."""

    def __init__(self, *failures: type[Exception]) -> None:
        """Set the exceptions, besides AbsentError, that mean a missing value."""
        self._failures: tuple[type[Exception], ...] = (*failures, AbsentError)
        self.absent: dict[str, str] = {}

    def read(self, name: str, read: Callable[[], T]) -> T | None:
        """Return the result of ``read``, or None if it fails; record the reason under ``name``."""
        try:
            return read()
        except self._failures as error:
            self.absent[name] = _reason(error)
            return None

    def read_each(self, reads: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """Return the results of several functions by name; see ``read``."""
        return {name: self.read(name, read) for name, read in reads.items()}


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


ROOT = Path("/")


def text_of(path: Path) -> str:
    """Return the content of a file without surrounding whitespace. Raises OSError."""
    return path.read_text("utf-8", errors="replace").strip().strip("\0")


def number_of(path: Path) -> int:
    """Return the number in a file. Raises OSError and ValueError."""
    return int(text_of(path))


def text_or_none(path: Path) -> str | None:
    """Return the content of a file, or None if it is missing or empty."""
    try:
        return text_of(path) or None
    except OSError:
        return None


def entries(folder: Path) -> list[Path]:
    """Return the entries of a folder sorted by name; none if the folder does not exist."""
    return sorted(folder.iterdir()) if folder.is_dir() else []


def numbers_in(ranges: str) -> list[int]:
    """Return the numbers in a list such as 0-3,8. Raises ValueError."""
    return [number for part in ranges.split(",") if part for number in _range(part)]


def _range(part: str) -> Iterator[int]:
    first, _, last = part.partition("-")
    yield from range(int(first), int(last or first) + 1)
