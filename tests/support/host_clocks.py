"""Readings of a host's clocks."""

from __future__ import annotations

from tests.support.clock import START

from aiperf_hpc.run.clocks import ClockReading, Clocks
from aiperf_hpc.run.records import ClocksRead

UP = START - 4_321.0
"""When the host of ``tests.support.clock.Clock`` was started, UTC seconds."""


def clocks(utc: float, monotonic: float, **changed: float) -> ClocksRead:
    """Return a reading of clocks that agree, but for ``changed``: raw, boot, ahead and so on."""
    ahead = changed.pop("ahead", 0.0)
    values = {"raw": monotonic, "boot": monotonic, "spread_seconds": 0.0001, **changed}
    server = ClockReading(ahead_seconds=ahead, precision_seconds=0.001)
    return ClocksRead(
        clocks=Clocks(
            utc=utc, monotonic=monotonic, raw_directly=True,
            answered_by="/lib/libfaster.so", server=server, **values,
        )
    )  # fmt: skip
