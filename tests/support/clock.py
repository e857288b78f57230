"""A clock for tests, and the time at which most of their runs start."""

from __future__ import annotations

from collections.abc import Callable

START = 1_750_000_000.0
"""UTC seconds of a run's start: 2025-06-15T15:06:40Z."""


class Clock:
    """A clock that moves only when told, or when someone sleeps by it."""

    def __init__(self, utc: float = START) -> None:
        self.now = utc
        self.pauses: list[float] = []

    def utc(self) -> float:
        """Return UTC seconds."""
        return self.now

    def monotonic(self) -> float:
        """Return seconds since the usual start, plus what a host has been up for."""
        return self.now - START + 4_321.0

    def sleep(self, seconds: float) -> None:
        """Note the pause, and let it pass at once."""
        self.pauses.append(seconds)
        self.advance(seconds)

    def wait(self, seconds: float, over: Callable[[], bool]) -> None:
        """Note the pause, unless it is over."""
        if not over():
            self.sleep(seconds)

    def advance(self, seconds: float) -> None:
        self.now += seconds
