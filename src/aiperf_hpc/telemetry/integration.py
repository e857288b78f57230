"""Energy from counters that wrap round, or from power; means of what is read again and again."""

from __future__ import annotations

import math


class Counter:
    """The energy by a counter that begins anew after its greatest value."""

    def __init__(
        self, joules_each: float, greatest: int | None = None, longest: float = math.inf
    ) -> None:
        """Begin without a reading.

        Args:
            joules_each: what one of the counter's units is.
            greatest: the value after which it begins anew at 0; None of one that never does.
            longest: seconds in which it surely does so once at most; what was between two readings
                further apart is not known.
        """
        self._joules_each = joules_each
        self._greatest = greatest
        self._longest = longest
        self._last: tuple[float, int] | None = None
        self._joules = self._seconds = 0.0

    def read(self, now: float, value: int) -> None:
        """Take a reading at ``now``, in monotonic seconds.

        One that is less than the last has wrapped round. Where it never does it was reset, as by
        a driver that was loaded again, and what it had counted meanwhile is not known.
        """
        if self._last is not None:
            then, before = self._last
            passed = value - before
            if passed < 0 and self._greatest is not None:
                passed += self._greatest + 1
            if passed >= 0 and now - then <= self._longest:
                self._joules += passed * self._joules_each
                self._seconds += now - then
        self._last = now, value

    def take(self) -> tuple[float, float]:
        """Return the joules since the last time, and how many seconds they cover."""
        taken = self._joules, self._seconds
        self._joules = self._seconds = 0.0
        return taken


class Trapezoid:
    """The energy by readings of power, which is taken to change evenly between two of them."""

    def __init__(self, longest: float) -> None:
        """Begin without a reading.

        Args:
            longest: seconds between two readings from which on what was between is not known.
        """
        self._longest = longest
        self._last: tuple[float, float] | None = None
        self._joules = self._seconds = 0.0

    def read(self, now: float, watts: float) -> None:
        """Take a reading at ``now``, in monotonic seconds."""
        if self._last is not None:
            then, before = self._last
            passed = now - then
            if passed <= self._longest:
                self._joules += 0.5 * (before + watts) * passed
                self._seconds += passed
        self._last = now, watts

    def missed(self) -> None:
        """Take note that a reading failed: nothing is known until the next one."""
        self._last = None

    def take(self) -> tuple[float, float]:
        """Return the joules since the last time, and how many seconds they cover."""
        taken = self._joules, self._seconds
        self._joules = self._seconds = 0.0
        return taken


class Mean:
    """The mean of readings, each as important as the others."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    def read(self, value: float | None) -> None:
        if value is not None:
            self._sum += value
            self._count += 1

    def take(self) -> float | None:
        """Return the mean since the last time; None where nothing was read."""
        mean = self._sum / self._count if self._count else None
        self._sum, self._count = 0.0, 0
        return mean
