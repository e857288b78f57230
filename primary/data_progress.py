"""Shows how far the replica side's data commands are, which run in a process of their own."""

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
from aiperf_hpc.host.signals import run_to_its_end, withheld
from aiperf_hpc.results.terminal.screen import BARS, Screen, bar_line, one_line
from aiperf_hpc.streams import width, without_controls

LOG_SECONDS = 15.0
"""How often the progress is said where no line can change."""


def run_shown(arguments: Sequence[str]) -> int:
    """Run ``python -m aiperf_hpc.replica.data``, show what it says, and return its status."""
    command = [sys.executable, "-m", "aiperf_hpc.replica.data", "--events", *arguments]
    reading, writing = os.pipe()
    display = DataDisplay(sys.stdout, sys.stderr)
    with (
        os.fdopen(reading, encoding="utf-8", errors="backslashreplace") as events,
        os.fdopen(writing, "w", encoding="utf-8") as output,
    ):
        thread = threading.Thread(target=display.follow, args=(events,), name="progress")
        with withheld():  # Signals are the main thread's: this one inherits that it gets none.
            thread.start()
        try:
            return run_to_its_end(command, output)
        finally:
            output.close()
            thread.join()


class DataDisplay:
    """Shows events of a data command: lines, complaints, and on a terminal a bar."""

    def __init__(
        self, output: TextIO, errors: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._screen = Screen(output)
        self._errors = errors
        self._clock = clock
        self._next = clock() + LOG_SECONDS
        self._gone = False
        """Whether nobody reads what is shown."""

    def follow(self, events: Iterable[str]) -> None:
        """Show events until there are no more; read them all, whoever looks."""
        for line in events:
            self._try(line)
        self._shown(self._screen.clear)

    def _try(self, line: str) -> None:
        try:
            ((kind, what),) = json.loads(line).items()
        except (ValueError, AttributeError):
            kind, what = "line", line.rstrip("\n")  # A library that prints something.
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
            self._gone = True  # As with `| head`: what is done is done all the same.

    def _complain(self, text: str) -> None:
        self._shown(self._screen.clear)
        self._errors.write(f"aiperf: {without_controls(text)}\n")
        self._errors.flush()

    def _progress(self, progress: dict[str, Any]) -> None:
        if self._screen.is_terminal:
            self._shown(lambda: self._screen.change(lambda columns, _: fitted(progress, columns)))
        elif (now := self._clock()) >= self._next:
            self._next = now + LOG_SECONDS
            self._shown(lambda: self._screen.line(progress_line(progress)))


def fitted(progress: dict[str, Any], columns: int) -> RenderableType:
    """Return the progress with a bar, for so many columns.

    Where that is too little the speed is left out, and the bar.
    """
    what, *rest = _parts(progress)
    said = rest if _fits([what, *rest], columns) else rest[:-1]
    if not _fits([what, *said], columns):
        return one_line(progress_line(progress))
    return bar_line(Text(what), _share(progress), Text("  ".join(said)), columns)


def _fits(parts: Sequence[str], columns: int) -> bool:
    """Return whether a bar has room beside them."""
    return width("  ".join(parts)) + 2 + BARS[-1] <= columns


def progress_line(progress: dict[str, Any]) -> str:
    """Return the progress as a line that stays."""
    return "  ".join(_parts(progress))


def _share(progress: dict[str, Any]) -> float:
    return float(progress["done"] / max(1, progress["total"]))


def _parts(progress: dict[str, Any]) -> list[str]:
    """Return what is done, and how far it is: what matters most first, since the end is cut off."""
    done, total, speed = progress["done"], progress["total"], progress["per_second"]
    parts = [str(progress["what"]), f"{int(100 * _share(progress)):3d}%"]
    if speed:
        parts.append(f"{roughly((total - done) / speed)} left")
    parts.append(f"{done:,} of {total:,} {progress['unit']}")
    return [*parts, f"{speed:,.0f}/s"] if speed and speed >= 1 else parts
