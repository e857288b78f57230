"""What a command shows while it works: lines, and on a terminal one more that changes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TextIO

from aiperf_hpc.streams import as_printed, cut

ANY_WIDTH = 80
"""The columns of a terminal that does not say how many it has."""
CLEAR = "\r\033[K"

Fitted = Callable[[int], str]
"""What makes a text for so many columns; one that is too long is cut off."""


class Screen:
    """Writes to a terminal, or to a file where nothing changes. Threads may share it.

    Raises OSError where nobody reads any more.
    """

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self.is_terminal = output.isatty()
        self._lock = threading.Lock()
        self._changing: Fitted | None = None

    def line(self, text: str) -> None:
        """Write a line that stays, above the one that changes."""
        with self._lock:
            self._output.write(f"{CLEAR}{text}\n" if self.is_terminal else f"{text}\n")
            self._write_changing()
            self._output.flush()

    def change(self, text: Fitted) -> None:
        """Make the line that changes say something else; there is none in a file."""
        with self._lock:
            self._changing = text
            self._write_changing()
            self._output.flush()

    def clear(self) -> None:
        """Take the changing line away."""
        with self._lock:
            if self.is_terminal and self._changing is not None:
                self._output.write(CLEAR)
                self._output.flush()
            self._changing = None

    def _write_changing(self) -> None:
        if self.is_terminal and self._changing is not None:
            # One less than there are: in the last one some terminals begin a new line.
            columns = max(0, self._columns() - 1)
            shown = cut(as_printed(self._changing(columns), self._output), columns)
            self._output.write(f"{CLEAR}{shown}")

    def _columns(self) -> int:
        """Return the columns that the window has now: people change its size."""
        return os.get_terminal_size(self._output.fileno()).columns or ANY_WIDTH
