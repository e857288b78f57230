"""Progress display of the replica side's data commands, which run in a separate process."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

from rich.console import RenderableType
from rich.text import Text

from aiperf_hpc.formatting import roughly
from aiperf_hpc.host.processes import run_to_its_end, withheld
from aiperf_hpc.results.terminal.screen import BARS, Screen, bar_line, one_line
from aiperf_hpc.streams import as_line, width, without_controls

LOG_SECONDS = 15.0
"""Interval of the progress lines if the output is not a terminal."""


def run_shown(arguments: Sequence[str]) -> int:
    """Run ``python -m aiperf_hpc.replica.data``, show its events, and return its exit status."""
    command = [sys.executable, "-m", "aiperf_hpc.replica.data", "--events", *arguments]
    reading, writing = os.pipe()
    display = DataDisplay(sys.stdout, sys.stderr)
    with (
        os.fdopen(reading, encoding="utf-8", errors="backslashreplace") as events,
        os.fdopen(writing, "w", encoding="utf-8") as output,
    ):
        thread = threading.Thread(target=display.follow, args=(events,), name="progress")
        with withheld():  # Only the main thread gets signals; this one inherits the blocking mask.
            thread.start()
        try:
            return run_to_its_end(command, output)
        finally:
            output.close()
            thread.join()


class DataDisplay:
    """Shows events of a data command: lines, warnings, and a progress bar on a terminal."""

    def __init__(
        self, output: TextIO, errors: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._screen = Screen(output)
        self._errors = errors
        self._clock = clock
        self._next = clock() + LOG_SECONDS
        self._gone = False
        """Whether the reader of the output has closed it."""

    def follow(self, events: Iterable[str]) -> None:
        """Show events until there are no more; read all, even if the output is closed."""
        for line in events:
            self._try(line)
        self._shown(self._screen.clear)

    def _try(self, line: str) -> None:
        try:
            ((kind, what),) = json.loads(line).items()
        except (ValueError, AttributeError):
            kind, what = "line", line.rstrip("\n")  # Output of a library.
        if kind == "complaint":
            self._complain(what)
        elif kind == "progress":
            self._progress(what)
        else:
            self._shown(lambda: self._screen.line(without_controls(what)))

    def _shown(self, show: Callable[[], None]) -> None:
        try:
            if not self._gone:
                show()
        except OSError:
            self._gone = True  # As with `| head`: the command continues.

    def _complain(self, text: str) -> None:
        self._shown(self._screen.clear)
        self._errors.write(f"aiperf: {as_line(text)}\n")
        self._errors.flush()

    def _progress(self, progress: dict[str, Any]) -> None:
        if self._screen.is_terminal:
            self._shown(lambda: self._screen.change(lambda columns, _: fitted(progress, columns)))
        elif (now := self._clock()) >= self._next:
            self._next = now + LOG_SECONDS
            self._shown(lambda: self._screen.line(progress_line(progress)))


def fitted(progress: dict[str, Any], columns: int) -> RenderableType:
    """Return the progress with a bar, in at most this number of columns.

    Narrow windows have no speed and no bar.
    """
    what, *rest = _parts(progress)
    said = rest if _fits([what, *rest], columns) else rest[:-1]
    if not _fits([what, *said], columns):
        return one_line(progress_line(progress))
    return bar_line(Text(what), _share(progress), Text("  ".join(said)), columns)


def _fits(parts: Sequence[str], columns: int) -> bool:
    """Return whether there is room for a bar."""
    return width("  ".join(parts)) + 2 + BARS[-1] <= columns


def progress_line(progress: dict[str, Any]) -> str:
    """Return the progress as a permanent line."""
    return "  ".join(_parts(progress))


def _share(progress: dict[str, Any]) -> float:
    return float(progress["done"] / max(1, progress["total"]))


def _parts(progress: dict[str, Any]) -> list[str]:
    """Return the action and its progress, most important first, because the end may be cut off."""
    done, total, speed = progress["done"], progress["total"], progress["per_second"]
    parts = [str(progress["what"]), f"{int(100 * _share(progress)):3d}%"]
    if speed:
        parts.append(f"{roughly((total - done) / speed)} left")
    parts.append(f"{done:,} of {total:,} {progress['unit']}")
    return [*parts, f"{speed:,.0f}/s"] if speed and speed >= 1 else parts
