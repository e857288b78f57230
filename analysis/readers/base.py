"""What every reader of training logs returns."""

from __future__ import annotations

from typing import NamedTuple

from aiperf_hpc.analysis.training_log import Entry
from aiperf_hpc.trial import Value


class Unreadable(Value):
    """A log that could not be read."""

    path: str
    reason: str


class Reading(NamedTuple):
    """What came of reading one source."""

    entries: tuple[Entry, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
