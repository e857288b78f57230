"""What the data commands say: as text, or as events for a process that shows them."""

from __future__ import annotations

import json
import sys
import threading
from contextlib import suppress
from typing import Protocol

from aiperf_hpc.replica.data.progress import Progress


class Reporter(Protocol):
    """Who is told what happens. Threads may share it."""

    def say(self, line: str) -> None:
        """Tell people something."""
        ...

    def complain(self, line: str) -> None:
        """Say what is wrong."""
        ...

    def progress(self, progress: Progress) -> None:
        """Tell how far something is."""
        ...


def reporter(*, events: bool) -> Reporter:
    """Return one that writes text, or events: a JSON object a line, whose one key is its kind.

    The kinds are ``line`` and ``complaint``, with a text, and ``progress``, with a ``Progress``.
    """
    return _Events() if events else _Text()


class _Text:
    """Writes lines to standard output, and complaints to standard error."""

    def say(self, line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def complain(self, line: str) -> None:
        sys.stderr.write(f"aiperf: {line}\n")

    def progress(self, progress: Progress) -> None:
        """Show nothing: who wants to see it asks for events."""


class _Events:
    """Writes events to standard output."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def say(self, line: str) -> None:
        self._write("line", line)

    def complain(self, line: str) -> None:
        self._write("complaint", line)

    def progress(self, progress: Progress) -> None:
        self._write("progress", progress.as_dict())

    def _write(self, kind: str, what: object) -> None:
        # Nobody need be left who reads it: what is done is done all the same.
        with self._lock, suppress(OSError):
            sys.stdout.write(json.dumps({kind: what}) + "\n")
            sys.stdout.flush()
