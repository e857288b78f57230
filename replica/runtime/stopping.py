"""When a replica has to stop: the run's time is over, or a stop was requested."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from pathlib import Path

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import TIME_OVER, ClockStarted, ClockStarts, RunStarted
from aiperf_hpc.run.requests import requested_stop
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


class StopFlag:
    """Looks at the clock, at a file on the shared directory and at this process's signals."""

    def __init__(
        self,
        deadline_utc: float,
        request: Path,
        *,
        look_every: float = 1.0,
        clock: Clock = SYSTEM,
        also: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Watch the time, a file and whatever else is a reason to stop.

        Args:
            deadline_utc: when the run's time is over, UTC seconds.
            request: a file whose existence asks for a stop; its text says why.
            look_every: seconds between two looks at the file.
            clock: the clock that the deadline is on.
            also: asked as often as the file; a text it returns is a reason to stop.
        """
        self.deadline = deadline_utc
        """When the run's time is over, UTC seconds."""
        self._request = request
        self._every = look_every
        self._clock = clock
        self._also = also
        self._looked = -1e9
        self._requested: str | None = None
        self._signalled = False
        self.interrupted = False
        """Whether the reason is a signal alone: the run has time left and nobody asked it to stop,
        so that a scheduler wants the node, and another life of this replica may follow."""
        self._reason: str | None = None
        self._since: float | None = None

    def install(self) -> None:
        """Let SIGTERM, SIGINT and SIGUSR1 ask for a stop in this process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._received)
        # Only the primary sends this one, and it wants the run to end.
        signal.signal(signal.SIGUSR1, lambda *_: self.ask("the primary asked for it"))

    def ask(self, reason: str) -> None:
        """Ask for a stop."""
        self._requested = self._requested or reason

    def interrupt(self, reason: str) -> None:
        """Ask for a stop as a scheduler does that wants the node."""
        self._signalled = self._requested is None
        self.ask(reason)

    def _received(self, number: int, _: object) -> None:
        self.interrupt(signal.Signals(number).name)

    @property
    def reason(self) -> str | None:
        """Why to stop, or None to go on. Cheap enough for every training step.

        The clock and the file come first: they say more than the signal that follows them.
        """
        if self._reason is None:
            now = self._clock.utc()
            if now >= self.deadline:
                self._reason = TIME_OVER
            elif self._requested is not None or now - self._looked >= self._every:
                self._looked = now
                self._reason = requested_stop(self._request) or self._also() or self._requested
                self.interrupted = self._signalled and self._reason == self._requested
        return self._reason

    def overdue(self, seconds: float) -> bool:
        """Return whether this should have stopped more than so many seconds ago."""
        if self.reason is None:
            return False
        if self._since is None:
            self._since = self._clock.utc()
        return self._clock.utc() - self._since > seconds
