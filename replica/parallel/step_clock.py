"""What a rank's training steps take, part by part; without a barrier, which would cost time."""

from __future__ import annotations

import time
from collections.abc import Sequence

from aiperf_hpc.replica.parallel.collectives.base import Copies
from aiperf_hpc.trial import StepPart

PARTS = tuple(StepPart)


class StepClock:
    """A stopwatch whose laps are booked on parts of a step; ``copies`` tells what was copying."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._steps = 0
        self._since = 0.0

    def begin(self) -> None:
        """Begin a lap: what was before it belongs to no part."""
        self._since = time.perf_counter()

    def book(self, part: StepPart) -> None:
        """End a lap and begin the next one; what of it was copying is booked as that."""
        now = time.perf_counter()
        copied_in, copied_out = self._copies.take()
        self._seconds[StepPart.COPY_IN] += copied_in
        self._seconds[StepPart.COPY_OUT] += copied_out
        self._seconds[part] += now - self._since - copied_in - copied_out
        self._since = now

    def count(self) -> None:
        """Note that a step is complete."""
        self._steps += 1

    def take(self) -> Sequence[float]:
        """Return the steps, and the seconds of each part, since the last call."""
        taken = (float(self._steps), *self._seconds.values())
        self._steps = 0
        self._seconds = dict.fromkeys(PARTS, 0.0)
        return taken
