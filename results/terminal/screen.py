"""Output of a running command: lines and, on a terminal, a live block below them."""

from __future__ import annotations

import os
import textwrap
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from aiperf_hpc.streams import as_printed, cut, width

ANY_WIDTH, ANY_HEIGHT = 80, 24
"""Size of a terminal that does not report its own."""
PLAIN_TERMINALS = ("dumb", "unknown")
"""Values of TERM for terminals that cannot move the cursor."""
BARS = (40, 30, 20, 10)
"""Possible lengths of a bar in columns: few, so that it keeps its place while figures change."""
BAR_STYLE = "cyan"
"""Style of the filled part of a bar."""
FURTHER = "    "
"""Indentation of the continuation lines of a folded line."""
_GAP = 2

Fitted = Callable[[int, int], RenderableType]
"""Function that returns the live block for a number of columns and lines; the rest is cut off."""


class Screen:
    """Writes to a terminal, or to a file without a live block. Threads may share it.

    Raises OSError if the reader has exited.
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
        """Write a permanent line above the live block.

        Args:
            text: line, which is folded at the width of the window.
            short: text for a window that is too narrow for the line, cut at its end.
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
        """Change the live block; a file has none."""
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
        """Remove the live block."""
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
        """Read the current size of the window, which may change."""
        try:
            size = os.get_terminal_size(self._output.fileno())
        except OSError:  # The output is not a real terminal, or was closed.
            size = os.terminal_size((0, 0))
        # The last column is left free, because some terminals start a new line there.
        columns, lines = (size.columns or ANY_WIDTH) - 1, size.lines or ANY_HEIGHT
        self._console.size = ConsoleDimensions(columns, lines)


@dataclass(frozen=True, slots=True)
class _Printable:
    """Content in characters of the output's encoding; lines that become too long are cut off."""

    shown: RenderableType
    output: TextIO

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self.shown, options, pad=False):
            texts = [Segment(as_printed(part.text, self.output), part.style) for part in line]
            yield from Segment.adjust_line_length(texts, options.max_width, pad=False)
            yield Segment.line()


class _Console(Console):
    """A console that raises an error, instead of exiting, when its reader exits."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def bar_line(before: Text, share: float, after: Text, columns: int) -> RenderableType:
    """Return a line with a bar in its middle, if the columns suffice for one.

    Args:
        before: text before the bar; may be empty.
        share: filled fraction of the bar, from 0 to 1.
        after: text after the bar.
        columns: width of the line.
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
    """Return a text in one line, which is cut off at the width of the window."""
    line = Text(text) if isinstance(text, str) else text.copy()
    line.plain = " ".join(line.plain.splitlines())
    line.no_wrap, line.overflow = True, "crop"
    return line
