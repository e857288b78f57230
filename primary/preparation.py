"""Shows how far the replica side's data commands are, which run in a process of their own."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

from aiperf_hpc.primary.monitor.screen import Screen
from aiperf_hpc.signals import run_to_its_end, withheld
from aiperf_hpc.streams import width, without_controls

LOG_SECONDS = 15.0
"""How often the progress is said where no line can change."""
_BARS = (30, 20, 10)
"""Columns of a bar; in a window with room for less there is none. Few, so that it keeps its
place while figures change."""


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
            self._shown(lambda: self._screen.change(lambda columns: fitted(progress, columns)))
        elif (now := self._clock()) >= self._next:
            self._next = now + LOG_SECONDS
            self._shown(lambda: self._screen.line(progress_line(progress)))


def fitted(progress: dict[str, Any], columns: int) -> str:
    """Return the progress with a bar, for so many columns.

    Where that is too little the speed is left out, and the bar.
    """
    what, *rest = _parts(progress)
    for said in (rest, rest[:-1]):
        text = "  ".join(said)
        left = columns - width(f"{what}  []  {text}")
        bar = next((bar for bar in _BARS if bar <= left), 0)
        if bar:
            filled = int(bar * _share(progress))
            return f"{what}  [{'#' * filled}{'-' * (bar - filled)}]  {text}"
    return progress_line(progress)


def progress_line(progress: dict[str, Any]) -> str:
    """Return the progress as a line that stays."""
    return "  ".join(_parts(progress))


def _share(progress: dict[str, Any]) -> float:
    return float(progress["done"] / max(1, progress["total"]))


def _parts(progress: dict[str, Any]) -> list[str]:
    """Return what is done, and how far it is: what matters most first, since the end is cut off."""
    done, total, speed = progress["done"], progress["total"], progress["per_second"]
    parts = [str(progress["what"]), f"{int(100 * _share(progress)):3d} %"]
    if speed:
        parts.append(f"{_roughly((total - done) / speed)} left")
    parts.append(f"{done:,} of {total:,} {progress['unit']}")
    return [*parts, f"{speed:,.0f}/s"] if speed and speed >= 1 else parts


def _roughly(seconds: float) -> str:
    """Return a time without the digits that nobody knows."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"
