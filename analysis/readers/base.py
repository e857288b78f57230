"""What every reader of training logs returns."""

from __future__ import annotations

from pathlib import Path
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

    @classmethod
    def failed(cls, path: Path, reason: object) -> Reading:
        """Return what came of a source that cannot be read."""
        return cls(unreadable=(Unreadable(path=str(path), reason=str(reason)),))
