"""Reading vendors' programs and libraries, and files of ``/proc`` and ``/sys``, if available."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from aiperf_hpc.errors import AIPerfError

TOOL_SECONDS = 10.0
"""The time limit of a vendor's program; one that hangs has a driver that does."""

Library: TypeAlias = Any
"""A vendor's Python module; none of them has types."""
Handle: TypeAlias = Any
"""Such a module's handle of an accelerator."""

T = TypeVar("T")


class AbsentError(AIPerfError):
    """A value is not available here; the message is the reason."""


def output_of(*command: str) -> str:
    """Return what a program prints.

    Raises:
        AbsentError: it is not there, fails or does not end.
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
        raise AbsentError(f"{name} did not answer in {TOOL_SECONDS:.0f} s") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[-1]
        raise AbsentError(f"{name} failed with status {done.returncode}: {said[:200]}")
    return done.stdout


class Probe:
    """Reads values one by one, and keeps the reason for each that is missing."""

    def __init__(self, *failures: type[Exception]) -> None:
        """Take the errors, besides AbsentError, by which a value is missing."""
        self._failures: tuple[type[Exception], ...] = (*failures, AbsentError)
        self.absent: dict[str, str] = {}

    def read(self, name: str, read: Callable[[], T]) -> T | None:
        """Return the value of ``read``; if it fails, None, with the reason under ``name``."""
        try:
            return read()
        except self._failures as error:
            self.absent[name] = _reason(error)
            return None

    def read_each(self, reads: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """Return the value of each of ``reads`` by its name, as ``read`` does."""
        return {name: self.read(name, read) for name, read in reads.items()}


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


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
