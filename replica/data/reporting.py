"""Output of the data commands: text, or events for a process that shows them."""

from __future__ import annotations

import json
import sys
import threading
from contextlib import suppress
from dataclasses import asdict

from aiperf_hpc.replica.data.progress import Progress


class TextReporter:
    """Writes lines to standard output and complaints to standard error. Threads may share it."""

    def say(self, line: str) -> None:
        """Report a line."""
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def complain(self, line: str) -> None:
        """Report a problem."""
        sys.stderr.write(f"aiperf: {line}\n")

    def progress(self, progress: Progress) -> None:
        """Show nothing: events have it."""


class EventReporter(TextReporter):
    """Writes events to standard output: JSON objects, a line each, whose only key is the kind.

    The kinds are ``line`` and ``complaint``, with a text, and ``progress``, with a ``Progress``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def say(self, line: str) -> None:
        self._write("line", line)

    def complain(self, line: str) -> None:
        self._write("complaint", line)

    def progress(self, progress: Progress) -> None:
        self._write("progress", asdict(progress))

    def _write(self, kind: str, value: object) -> None:
        # The reader may have exited; the work goes on.
        with self._lock, suppress(OSError):
            sys.stdout.write(json.dumps({kind: value}) + "\n")
            sys.stdout.flush()
