"""When the time of a run is over, as a replica learns it from the primary's journal."""

from __future__ import annotations

import math

from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import ClockStarted, ClockStarts, RunStarted
from aiperf_hpc.run.storage import Retry


class RunClock:
    """What the primary's journal says of the start of the run's clock."""

    def __init__(self, paths: RunPaths, hours: float, began_utc: float, retry: Retry) -> None:
        """Read what the journal says so far.

        Args:
            paths: the run.
            hours: for how long its clock runs.
            began_utc: when this replica began, UTC seconds.
            retry: how to read.
        """
        self._journal = JournalReader(paths.primary_journal, retry=retry)
        self._seconds = hours * 3600.0
        self._began = began_utc
        self.starts: ClockStarts | None = None
        """What starts the clock; None where the journal does not say that the run has started."""
        self.start_utc: float | None = None
        """When it started, UTC seconds; None as long as that is not known."""
        self.look()

    def look(self) -> bool:
        """Read what was added, unless the start is known; return whether it has become known."""
        if self.start_utc is not None:
            return False
        for record in self._journal.read():
            event = record.event
            if isinstance(event, RunStarted):
                self.starts = event.clock_starts
                if self.starts == "now":
                    self.start_utc = record.utc
            elif isinstance(event, ClockStarted):
                self.start_utc = event.start_utc
            if self.start_utc is not None:
                return True
        return False

    @property
    def deadline(self) -> float:
        """When the run's time is over, UTC seconds; the latest that it can be while its start is
        not known: no clock starts after the first replica began, unless all are waited for."""
        if self.start_utc is None and self.starts == "all":
            return math.inf
        return (self._began if self.start_utc is None else self.start_utc) + self._seconds
