"""When a process counts as silent, gone or dead. Status, control, the rules and verify ask here.

A process that is alive writes a heartbeat every ``journal.heartbeat_seconds``. Whoever reads on
another client of the file server may see it late.
"""

from __future__ import annotations

import os
import socket

from aiperf_hpc.host.processes import runs_aiperf
from aiperf_hpc.run.records import RunStarted

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
