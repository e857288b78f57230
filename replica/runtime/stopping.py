"""The stop signal of a replica: the run's time is over, or a stop was requested."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import TIME_OVER, ClockStarted, ClockStarts, RunStarted
from aiperf_hpc.run.requests import requested_stop
from aiperf_hpc.run.storage import Retry


class RunClock:
    """The start of the run's clock, as recorded in the primary's journal."""

    def __init__(self, paths: RunPaths, hours: float, began_utc: float, retry: Retry) -> None:
        """Read the journal.

        Args:
            paths: paths of the run.
            hours: length of the run.
            began_utc: start of this replica in UTC seconds.
            retry: retries failed reads.
        """
        self._journal = JournalReader(paths.primary_journal, retry=retry)
        self._seconds = hours * 3600.0
        self._began = began_utc
        self.starts: ClockStarts | None = None
        """The event that starts the clock; None if the journal has no start of the run."""
        self.start_utc: float | None = None
        """Start of the clock in UTC seconds, or None if it is not known yet."""
        self.look()

    def look(self) -> bool:
        """Read new records unless the start is known; return whether it has become known."""
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
        """End of the run in UTC seconds. While the start is unknown, the latest possible end:
        unless the run waits for all replicas, the clock starts before the first replica does."""
        if self.start_utc is None and self.starts == "all":
            return math.inf
        return (self._began if self.start_utc is None else self.start_utc) + self._seconds


@dataclass(eq=False)
class StopFlag:
    """Stop signal: watches the clock, a file on the shared directory and this process's signals."""

    deadline: float
    """End of the run in UTC seconds."""
    request: Path
    """File whose existence requests a stop; its text is the reason."""
    _: KW_ONLY
    look_every: float = 1.0
    """Polling interval of the file in seconds."""
    clock: Clock = SYSTEM
    """Clock of the deadline."""
    also: Callable[[], str | None] = lambda: None
    """Polled like the file; returns a reason to stop, or an empty text."""

    def __post_init__(self) -> None:
        self._looked = -1e9
        self._requested: str | None = None
        self._signalled = False
        self.interrupted = False
        """Whether only a signal requests the stop: the scheduler preempts the node before the run
        ends, and another attempt of this replica may follow."""
        self._reason: str | None = None
        self._since: float | None = None

    def install(self) -> None:
        """Handle SIGTERM, SIGINT and SIGUSR1 as stop requests in this process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda got, _: self.interrupt(signal.Signals(got).name))
        # Only the primary sends this signal, to end the run.
        signal.signal(signal.SIGUSR1, lambda *_: self.ask("the primary requested it"))

    def ask(self, reason: str) -> None:
        """Request a stop."""
        self._requested = self._requested or reason

    def interrupt(self, reason: str) -> None:
        """Request a stop as a scheduler does that preempts the node."""
        self._signalled = self._requested is None
        self.ask(reason)

    @property
    def reason(self) -> str | None:
        """Reason to stop, or None. Cheap enough for every training step.

        The clock and the file take precedence: their reasons are more specific than a signal.
        """
        if self._reason is None:
            now = self.clock.utc()
            if now >= self.deadline:
                self._reason = TIME_OVER
            elif self._requested is not None or now - self._looked >= self.look_every:
                self._looked = now
                self._reason = requested_stop(self.request) or self.also() or self._requested
                self.interrupted = self._signalled and self._reason == self._requested
        return self._reason

    def overdue(self, seconds: float) -> bool:
        """Return whether the stop was due more than this number of seconds ago."""
        if self.reason is None:
            return False
        if self._since is None:
            self._since = self.clock.utc()
        return self.clock.utc() - self._since > seconds
