"""What a run's records say of who outside has seen it go on."""

from __future__ import annotations

from dataclasses import dataclass

from aiperf_hpc.run.records import TimeStamped, Witnessed, WitnessState
from aiperf_hpc.run.statements import Statement


@dataclass(slots=True)
class WitnessHistory:
    """A witness, or a time-stamp authority, as the primary recorded it; nothing is checked."""

    url: str
    key: str = ""
    """The fingerprint of its key; empty for a time-stamp authority."""
    times: int = 0
    """How often it answered."""
    first_utc: float = 0.0
    """When it first did, UTC seconds: by its own clock, or the primary's for an authority."""
    last_utc: float = 0.0
    greatest_gap: float = 0.0
    """The longest time between two answers, or from the run's start to the first, seconds."""
    covered: int = 0
    """The bytes of the primary's journal that it has seen."""
    last: Statement | None = None
    """The last statement; None for a time-stamp authority."""
    away: str = ""
    """Why it does not answer; empty while it does."""

    def take(self, utc: float, event: Witnessed | TimeStamped, start_utc: float | None) -> None:
        """Take an answer, recorded at a time, UTC seconds."""
        if isinstance(event, Witnessed):
            self.key, self.last = event.key, event.statement
            utc, head = event.statement.utc, event.statement.head
        else:
            head = event.head
        before = self.last_utc if self.times else (start_utc or utc)
        self.first_utc = self.first_utc if self.times else utc
        self.greatest_gap = max(self.greatest_gap, utc - before)
        self.last_utc = utc
        self.times += 1
        self.covered = max(self.covered, head.bytes)

    def change(self, event: WitnessState) -> None:
        """Take that it began or ceased to answer."""
        self.away = "" if event.answers else event.detail
