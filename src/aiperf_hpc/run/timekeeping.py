"""When a process records its clocks: at its start, every hour and at its end."""

from __future__ import annotations

import math
from collections.abc import Callable

from aiperf_hpc.clock import Clock
from aiperf_hpc.run.clocks import Clocks
from aiperf_hpc.run.records import ClocksRead

EVERY_SECONDS = 3600.0


class Timekeeping:
    """What one process records of its clocks. Its threads may share it, but not call it at once."""

    def __init__(self, read: Callable[[], Clocks | None], clock: Clock) -> None:
        """Read nothing yet.

        Args:
            read: reads all clocks; None where there are none to read, as in a simulation.
            clock: by which an hour passes.
        """
        self._read = read
        self._clock = clock
        self._due = math.inf

    def at_start(self) -> list[ClocksRead]:
        """Return what is to be recorded first. Raises what reading the clocks does."""
        self._due = self._clock.monotonic() + EVERY_SECONDS
        clocks = self._read()
        return [] if clocks is None else [ClocksRead(clocks=clocks)]

    def if_due(self) -> list[ClocksRead]:
        """Return what is to be recorded in between: nothing, but once an hour."""
        return self.at_start() if self._clock.monotonic() >= self._due else []

    def at_end(self) -> list[ClocksRead]:
        """Return what is to be recorded last: nothing where nothing was at the start."""
        return self.at_start() if self._due < math.inf else []
