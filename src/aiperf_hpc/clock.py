"""The clock interface of a run: this machine's clock or a simulated one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

PIECE_SECONDS = 0.1


class Clock(Protocol):
    """Source of time and sleep."""

    def utc(self) -> float:
        """Return UTC seconds since 1970."""

    def monotonic(self) -> float:
        """Return seconds of a monotonic clock with an arbitrary origin."""

    def sleep(self, seconds: float) -> None:
        """Sleep for a number of seconds; return immediately if it is negative."""

    def wait(self, seconds: float, over: Callable[[], bool]) -> None:
        """Sleep for a number of seconds, or until ``over`` (polled several times per second)."""


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
        """Sleep."""
        time.sleep(max(0.0, seconds))

    def wait(self, seconds: float, over: Callable[[], bool]) -> None:
        """Sleep in short intervals, because a signal handler does not end an interrupted sleep."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0.0 and not over():
            time.sleep(min(left, PIECE_SECONDS))


SYSTEM = SystemClock()
"""This machine's clock, for the entry points of processes, which are not passed one."""
