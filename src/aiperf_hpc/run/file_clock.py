"""How this host's clock stands to the one that all hosts of a run can ask: the file server's.

No host of a cluster can read another's clock, but each can have a file of the shared directory
stamped. Two hosts that know how far they are ahead of the same server know how far they are
apart. Without NTP, without a service of its own, without rights.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.bounds import Finite

SAMPLES = 3
Time = Finite
"""Seconds, of a clock or between two of its readings: a record with any other is none."""


class ClockReading(Value):
    """A host's clock beside the file server's."""

    ahead_seconds: Time
    """How far the host is ahead; negative when it is behind."""
    precision_seconds: Time
    """How wrong that may be: half of the time that the server took to answer."""


FileClock = Callable[[Path, Callable[[], float]], ClockReading | None]
"""What compares a clock, UTC seconds, with that of the server of a folder, where that says
something."""


def read_clock(folder: Path, clock: Callable[[], float] = time.time) -> ClockReading:
    """Compare ``clock``, UTC seconds, with that of the server of ``folder``.

    A file's time is set to "now" by whoever keeps the file: on NFS the server (SETATTR with
    SET_TO_SERVER_TIME, RFC 1813, 2.6). File systems whose clients set it (Lustre, local disks)
    say 0 whatever the clocks do.

    Raises:
        OSError: the folder cannot be written.
    """
    handle, name = tempfile.mkstemp(prefix=".clock-", dir=folder)
    try:
        readings = [_reading(handle, clock) for _ in range(SAMPLES)]
    finally:
        os.close(handle)
        Path(name).unlink()
    return min(readings, key=lambda reading: reading.precision_seconds)


def _reading(handle: int, clock: Callable[[], float]) -> ClockReading:
    before = clock()
    os.utime(handle)
    after = clock()
    stamped = os.fstat(handle).st_mtime
    return ClockReading(
        ahead_seconds=(before + after) / 2.0 - stamped, precision_seconds=(after - before) / 2.0
    )
