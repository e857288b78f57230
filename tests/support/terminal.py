"""A pseudo-terminal with an emulator behind it: what people see of what a program writes."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import termios
import threading
from collections.abc import Mapping

import pyte
from tests.support.waiting import until

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
LINES = 24
_MARK = "\x1b]2;settled {}\x07"


class Terminal:
    """A pseudo-terminal: what is written to ``output`` is on its screen."""

    def __init__(self, columns: int, encoding: str = "utf-8") -> None:
        self._encoding = encoding
        self._master, self._slave = os.openpty()
        self.output = os.fdopen(self._slave, "w", encoding=encoding, errors="aiperf.readable")
        self._screen = pyte.HistoryScreen(columns, LINES, history=100_000)
        self._stream = pyte.ByteStream(self._screen)
        self.resize(columns)
        self._seen = b""
        self._told = 0
        self._marks = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def resize(self, columns: int) -> None:
        """Make the window as wide as this; nothing is being written meanwhile."""
        size = struct.pack("HHHH", LINES, columns, 0, 0)
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, size)
        self._screen.resize(LINES, columns or 80)

    def _read(self) -> None:
        try:
            while data := os.read(self._master, 65_536):
                self._stream.feed(data)
                self._seen += data
        except OSError:  # The other end was closed.
            return

    @property
    def raw(self) -> str:
        """All that was written so far, the terminal's commands too."""
        self.settle()
        return self._seen.decode(self._encoding, "replace")

    @property
    def text(self) -> str:
        """All that was written so far, without the terminal's commands."""
        return _ESCAPES.sub("", self.raw)

    def settle(self) -> None:
        """Wait until all that was written so far is on the screen."""
        self._marks += 1
        mark = _MARK.format(self._marks)
        self.output.write(mark)
        self.output.flush()
        until(lambda: mark.encode(self._encoding) in self._seen)

    def new(self) -> list[str]:
        """Return the lines written since the last call, also those that were replaced."""
        text = self.text
        new, self._told = text[self._told :], len(text)
        return [line for line in re.split("[\r\n]+", new) if line]

    def rows(self) -> list[str]:
        """Return what is on the screen, and what has left it above; nothing below the last."""
        self.settle()
        above = [_text(line, self._screen.columns) for line in self._screen.history.top]
        rows = [row.rstrip() for row in (*above, *self._screen.display)]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def close(self) -> None:
        self.output.close()
        self._reader.join()
        os.close(self._master)


def _text(line: Mapping[int, pyte.screens.Char], columns: int) -> str:
    return "".join(line[place].data for place in range(columns))
