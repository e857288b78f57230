"""The clock that the parts of a run go by: this machine's, or one that a simulation makes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

PIECE_SECONDS = 0.1


class Clock(Protocol):
    """Tells the time, and lets it pass."""

    def utc(self) -> float:
        """Return UTC seconds since 1970."""
        ...

    def monotonic(self) -> float:
        """Return seconds since some moment; they never go back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let so many seconds pass; none when there are fewer than that."""
        ...

    def wait(self, seconds: float, over: Callable[[], bool]) -> None:
        """Let so many seconds pass, or fewer: ``over`` is asked several times a second."""
        ...


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The clock of this machine."""

    def utc(self) -> float:
        """Return UTC seconds since 1970."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds since this machine started."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(max(0.0, seconds))

    def wait(self, seconds: float, over: Callable[[], bool]) -> None:
        """Sleep in pieces: a signal's handler does not end a sleep that it interrupts."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0.0 and not over():
            time.sleep(min(left, PIECE_SECONDS))


SYSTEM = SystemClock()
"""The machine's own clock, for who has been given no other: a process's outermost function."""
