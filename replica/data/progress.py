"""How far something long is, for whoever shows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

EVERY_SECONDS = 1.0
"""How often progress is told at most."""


@dataclass(frozen=True, slots=True)
class Progress:
    """So much of something is done."""

    what: str
    """What is being done: a participle, for people."""
    done: int
    total: int
    unit: str
    """What is counted, in the plural."""
    per_second: float | None = None
    """How many were done a second; None before that can be said."""

    def as_dict(self) -> dict[str, object]:
        """Return it as JSON can hold it."""
        return asdict(self)


Show = Callable[[Progress], None]


def not_shown(progress: Progress) -> None:
    """Show nothing."""
    del progress


class Meter:
    """Counts what is done and tells it, at most once a second. Threads may share it.

    Args:
        kept: what was done before, which says nothing about the speed.
    """

    def __init__(
        self,
        show: Show,
        what: str,
        total: int,
        unit: str,
        *,
        kept: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._show = show
        self._what, self._total, self._unit = what, total, unit
        self._done = self._kept = kept
        self._clock = clock
        self._began = clock()
        self._next = self._began
        self._lock = threading.Lock()

    def add(self, number: int = 1) -> None:
        """Count so many more."""
        with self._lock:
            self._done += number
            now = self._clock()
            if now < self._next and self._done < self._total:
                return
            self._next = now + EVERY_SECONDS
            self._show(self._progress(now - self._began))

    def _progress(self, seconds: float) -> Progress:
        new = self._done - self._kept
        speed = new / seconds if new and seconds > 0 else None
        return Progress(self._what, self._done, self._total, self._unit, speed)
