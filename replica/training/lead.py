"""How long before a trial's possible end the preparation of the next one begins."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from aiperf_hpc.clock import Clock

LEAST_SECONDS = 60.0
"""The least lead, which is enough where nothing is compiled."""
MARGIN = 1.5
"""The lead as a multiple of the longest of the last preparations."""
REMEMBERED = 5


class Lead:
    """The lead, learned from how long the last preparations took. For several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def seconds(self) -> float:
        """Seconds before a trial's possible end."""
        return max(LEAST_SECONDS, MARGIN * max(tuple(self._last), default=0.0))

    def begin(self) -> Callable[[object], None]:
        """Note that a preparation begins; return what is to be called, with anything, at its end.

        What has to wait for the end of the trial under way is no part of it.
        """
        began = self._clock.monotonic()

        def end(_: object) -> None:
            self._last.append(self._clock.monotonic() - began)

        return end
