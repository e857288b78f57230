"""What a command shows while it works: lines, and on a terminal a few more that change."""

from __future__ import annotations

import os
import textwrap
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from rich.console import (
    Console,
    ConsoleDimensions,
    ConsoleOptions,
    RenderableType,
    RenderResult,
)
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from aiperf_hpc.streams import as_printed, cut, width

ANY_WIDTH, ANY_HEIGHT = 80, 24
"""The size of a terminal that does not say what it has."""
PLAIN_TERMINALS = ("dumb", "unknown")
"""The values of TERM where nothing that was written can be changed."""
BARS = (40, 30, 20, 10)
"""Columns that a bar may have: few, so that it keeps its place while figures change."""
BAR_STYLE = "cyan"
"""Style of the filled part of a bar."""
FURTHER = "    "
"""What the further lines of one that is too long begin with."""
_GAP = 2

Fitted = Callable[[int, int], RenderableType]
"""What makes a text for so many columns and lines; what is too long is cut off."""


class Screen:
    """Writes to a terminal, or to a file where nothing changes. Threads may share it.

    Raises OSError where nobody reads any more.
    """

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self.is_terminal = output.isatty() and os.environ.get("TERM") not in PLAIN_TERMINALS
        self._lock = threading.Lock()
        self._changing: Fitted | None = None
        self._console = _Console(
            file=output, force_terminal=self.is_terminal, highlight=False, markup=False, emoji=False
        )
        self._live = Live(
            console=self._console,
            get_renderable=self._fitted,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def line(self, text: str, short: str | None = None) -> None:
        """Write a line that stays, above those that change.

        Args:
            text: line, which is folded where the window ends.
            short: what a window too narrow for the line has instead, in one line, cut at its end.
        """
        with self._lock:
            if self.is_terminal:
                self._measure()
                shown = self._folded(text) if short is None else self._in_one_line(text, short)
                self._console.print(Text(shown, no_wrap=True))
            else:
                self._output.write(f"{text}\n")
                self._output.flush()

    def change(self, text: Fitted) -> None:
        """Make what changes say something else; there is nothing of that in a file."""
        with self._lock:
            self._changing = text
            if not self.is_terminal:
                return
            self._measure()
            if not self._live.is_started:
                self._live.start()
                # A process that is killed would leave the terminal without one.
                self._console.show_cursor(True)
            self._live.refresh()

    def clear(self) -> None:
        """Take what changes away."""
        with self._lock:
            self._changing = None
            if self._live.is_started:
                self._measure()
                self._live.stop()

    def _fitted(self) -> RenderableType:
        size = self._console.size
        if self._changing is None or size.width < 1:
            return ""
        return _Printable(self._changing(size.width, size.height), self._output)

    def _folded(self, text: str) -> str:
        columns, shown = self._console.width, as_printed(text, self._output)
        if width(shown) <= columns or columns <= 2 * len(FURTHER):
            return shown
        indent = " " * (len(text) - len(text.lstrip(" ")))
        words = textwrap.wrap(
            shown.strip(),
            columns // 2 if width(shown) > len(shown) else columns,
            initial_indent=indent,
            subsequent_indent=indent + FURTHER,
            break_long_words=False,
            break_on_hyphens=False,
        )
        return "\n".join(words)

    def _in_one_line(self, text: str, short: str) -> str:
        columns, end = self._console.width, as_printed("…", self._output)
        for shown in (as_printed(text, self._output), as_printed(short, self._output)):
            if width(shown) <= columns:
                return shown
        return cut(f"{cut(shown, columns - len(end))}{end}", columns)

    def _measure(self) -> None:
        """Take the size that the window has now: people change it."""
        try:
            size = os.get_terminal_size(self._output.fileno())
        except OSError:  # A stand-in for a terminal, or one that is gone.
            size = os.terminal_size((0, 0))
        # One column less than there are: in the last one some terminals begin a new line.
        columns, lines = (size.columns or ANY_WIDTH) - 1, size.lines or ANY_HEIGHT
        self._console.size = ConsoleDimensions(columns, lines)


@dataclass(frozen=True, slots=True)
class _Printable:
    """Something as the output can show it, whose lines then may be longer, and are cut off."""

    shown: RenderableType
    output: TextIO

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self.shown, options, pad=False):
            texts = [Segment(as_printed(part.text, self.output), part.style) for part in line]
            yield from Segment.adjust_line_length(texts, options.max_width, pad=False)
            yield Segment.line()


class _Console(Console):
    """A console whose reader may go away: that is told, and ends no process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def bar_line(before: Text, share: float, after: Text, columns: int) -> RenderableType:
    """Return a line with a bar in its midst, where so many columns have room for one.

    Args:
        before: what is before the bar; may be empty.
        share: the part of the bar that is filled, from 0 to 1.
        after: what is behind it.
        columns: the columns of the line.
    """
    texts = [text for text in (before, after) if text]
    left = columns - sum(text.cell_len + _GAP for text in texts)
    length = next((bar for bar in BARS if bar <= left), 0)
    if not length:
        return one_line(Text("  ").join(texts))
    grid = Table.grid(padding=(0, _GAP, 0, 0))
    filled = min(1.0, max(0.0, share))
    bar = ProgressBar(1.0, filled, length, complete_style=BAR_STYLE, finished_style=BAR_STYLE)
    cells: list[RenderableType] = [*([before] if before else []), bar, after]
    for _ in cells:
        grid.add_column(no_wrap=True)
    grid.add_row(*cells)
    return grid


def one_line(text: Text | str) -> Text:
    """Return a text in one line, which is cut off where the window ends."""
    line = Text(text) if isinstance(text, str) else text.copy()
    line.plain = " ".join(line.plain.splitlines())
    line.no_wrap, line.overflow = True, "crop"
    return line
