"""Liveness of processes (silent or exited, by their heartbeats) and records of their clocks.

A running process writes a heartbeat every ``journal.heartbeat_interval_seconds``. A reader on
another client of the file server may see it with a delay.
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
"""Maximum delay in seconds until another host's files and records are visible: NFS's default."""
LISTING_SECONDS = 90.0
"""Maximum delay in seconds until another client lists a created or removed file; NFS's is 60 s."""
MISSED_BEATS = 3.0
"""Number of missed heartbeats after which a process no longer counts as alive."""
TOLERATED_BEATS = 10.0
"""Number of successive heartbeats that a valid run may miss: stopped, or waiting for storage."""
PAUSE_SECONDS = 60.0
"""Maximum seconds between two records of a working process; beyond that it may be stopped."""
STOPPED_SECONDS = 600.0
"""Seconds between two records from which on a process counts as stopped, not as working."""


def own_limit(heartbeat_seconds: float) -> float:
    """Return the seconds without a record after which others may assume this process has exited."""
    return MISSED_BEATS * heartbeat_seconds


def silent_limit(heartbeat_seconds: float) -> float:
    """Return the seconds without a visible record after which a process is reported as silent."""
    return max(LAG_SECONDS, own_limit(heartbeat_seconds))


def gone_limit(heartbeat_seconds: float) -> float:
    """Return the seconds without a visible record after which a process counts as exited."""
    return LAG_SECONDS + own_limit(heartbeat_seconds)


def tolerated_limit(heartbeat_seconds: float) -> float:
    """Return the longest silence, in seconds, that is allowed in the records of a valid run."""
    return TOLERATED_BEATS * max(heartbeat_seconds, LAG_SECONDS)


def primary_is_gone(start: RunStarted) -> bool | None:
    """Return whether the started primary has exited, or None if it is on another host."""
    if start.host != socket.gethostname():
        return None
    return start.pid != os.getpid() and not runs_aiperf(start.pid)


EVERY_SECONDS = 3600.0


class Timekeeping:
    """Clock records of one process. Threads may share it but must not call it concurrently."""

    def __init__(self, read: Callable[[], Clocks | None], clock: Clock) -> None:
        """Create it without reading the clocks.

        Args:
            read: reads all clocks; returns None if there are none, as in a simulation.
            clock: clock of the interval between readings.
        """
        self._read = read
        self._clock = clock
        self._due = math.inf

    def at_start(self) -> list[ClocksRead]:
        """Return the record for the start of the process. Raises the errors of ``read``."""
        self._due = self._clock.monotonic() + EVERY_SECONDS
        clocks = self._read()
        return [] if clocks is None else [ClocksRead(clocks=clocks)]

    def if_due(self) -> list[ClocksRead]:
        """Return the hourly record if it is due, otherwise nothing."""
        return self.at_start() if self._clock.monotonic() >= self._due else []

    def at_end(self) -> list[ClocksRead]:
        """Return the record for the end of the process; nothing if there was none at the start."""
        return self.at_start() if self._due < math.inf else []
