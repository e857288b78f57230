"""When a replica has to stop: its time is over, or someone asked for it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.run.records import TIME_OVER
from aiperf_hpc.run.requests import requested_stop


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
        self._asked: str | None = None
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
        self._asked = self._asked or reason

    def interrupt(self, reason: str) -> None:
        """Ask for a stop as a scheduler does that wants the node."""
        self._signalled = self._asked is None
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
            elif self._asked is not None or now - self._looked >= self._every:
                self._looked = now
                self._reason = requested_stop(self._request) or self._also() or self._asked
                self.interrupted = self._signalled and self._reason == self._asked
        return self._reason

    def overdue(self, seconds: float) -> bool:
        """Return whether this should have stopped more than so many seconds ago."""
        if self.reason is None:
            return False
        if self._since is None:
            self._since = self._clock.utc()
        return self._clock.utc() - self._since > seconds
