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
        self._begun = dict(self._seconds)
        """As ``_seconds``, when the step under way began."""
        self._apart = {StepPart.WAIT: 0.0, StepPart.REDUCE: 0.0}
        """The seconds of steps that told the two apart, of all since the clock was made."""

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

    def count(self, *, waited_apart: bool) -> None:
        """Note that a step is complete.

        Args:
            waited_apart: whether the wait for the others was told apart from the reduction.
                Otherwise what the step took for both is divided as by those that did.
        """
        self._steps += 1
        taken = {part: self._seconds[part] - self._begun[part] for part in self._apart}
        if waited_apart:
            for part, seconds in taken.items():
                self._apart[part] += seconds
        elif whole := sum(self._apart.values()):
            both = sum(taken.values())
            for part, seconds in taken.items():
                self._seconds[part] += both * self._apart[part] / whole - seconds
        self._begun = dict(self._seconds)

    def take(self) -> Sequence[float]:
        """Return the steps, and the seconds of each part, since the last call."""
        taken = (float(self._steps), *self._seconds.values())
        self._steps = 0
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._begun = dict(self._seconds)
        return taken
