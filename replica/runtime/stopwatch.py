"""Stopwatch of the trainer's wall time: every second belongs to exactly one phase."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.trial import TimePhase


class Stopwatch:
    """Sums wall seconds by phase. Other threads may read the current phase."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.phase = TimePhase.START
        """The current phase."""
        self._since = clock.monotonic()
        self._seconds: dict[TimePhase, float] = defaultdict(float)

    def enter(self, phase: TimePhase) -> None:
        """End the current phase and start ``phase``."""
        with self._lock:
            now = self._clock.monotonic()
            self._seconds[self.phase] += now - self._since
            self.phase = phase
            self._since = now

    @contextmanager
    def during(self, phase: TimePhase) -> Iterator[None]:
        """Count the block's time as ``phase``, then return to the previous phase."""
        before = self.phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def add(self, phase: TimePhase, seconds: float) -> None:
        """Add time that passed before this stopwatch was made."""
        self._seconds[phase] += seconds

    def take(self) -> dict[TimePhase, float]:
        """Return the seconds of each phase since the last call, up to now."""
        self.enter(self.phase)
        with self._lock:
            seconds = {phase: value for phase, value in self._seconds.items() if value > 0.0}
            self._seconds.clear()
        return seconds
