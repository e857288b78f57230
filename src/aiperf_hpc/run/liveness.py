"""When a process records its clocks, and when it counts as silent, gone or dead.

A process that is alive writes a heartbeat every ``journal.heartbeat_seconds``. A reader on another
client of the file server may see it late.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable

from aiperf_hpc.clock import Clock
from aiperf_hpc.host.processes import runs_aiperf
from aiperf_hpc.run.clocks import Clocks
from aiperf_hpc.run.records import ClocksRead, RunStarted

LAG_SECONDS = 60.0
"""How late another host's files and records may become visible: the default of NFS."""
LISTING_SECONDS = 90.0
"""How late another client may list a file that was made or removed; NFS shows 60 s."""
MISSED_BEATS = 3.0
"""How many heartbeats a process may miss and still be taken for alive."""
TOLERATED_BEATS = 10.0
"""How many an honest process may miss in a row: it was stopped, or waited for storage."""
PAUSE_SECONDS = 60.0
"""The time between two records of a process that is at work; in a longer one it may be stopped."""
STOPPED_SECONDS = 600.0
"""The time between two records after which a process was not at work, but stopped."""


def own_limit(heartbeat_seconds: float) -> float:
    """Return after how many seconds without a record others may take this process for gone."""
    return MISSED_BEATS * heartbeat_seconds


def silent_limit(heartbeat_seconds: float) -> float:
    """Return the seconds without a visible record after which a process is called silent."""
    return max(LAG_SECONDS, own_limit(heartbeat_seconds))


def gone_limit(heartbeat_seconds: float) -> float:
    """Return the seconds without a visible record after which a process is taken for gone."""
    return LAG_SECONDS + own_limit(heartbeat_seconds)


def tolerated_limit(heartbeat_seconds: float) -> float:
    """Return the longest silence of a process at work that its records can be believed with."""
    return TOLERATED_BEATS * max(heartbeat_seconds, LAG_SECONDS)


def primary_is_gone(start: RunStarted) -> bool | None:
    """Return whether the primary of a start has died; None if it is on another host."""
    if start.host != socket.gethostname():
        return None
    return start.pid != os.getpid() and not runs_aiperf(start.pid)


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
