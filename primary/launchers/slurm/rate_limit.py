"""Not calling SLURM's client too often, whoever of this process calls it, and for what."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.errors import SchedulerError, UsageError

AGAIN = "; nothing was started; try again when SLURM answers"
"""What to do where a start was not answered."""
SHORTEST_SECONDS = 5.0
"""The shortest time between two calls of SLURM's client, whatever the number of nodes."""
T = TypeVar("T")


def answered(request: Callable[[], T], what: str, do: str = "") -> T:
    """Return the answer of SLURM. Raises UsageError: there is none, what that means, what to do."""
    try:
        return request()
    except SchedulerError as error:
        raise UsageError(f"{what}: {error}{do}") from None


class RateLimit:
    """Keeps calls apart."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = -math.inf

    @property
    def quiet_seconds(self) -> float:
        """Since the end of the last call."""
        return self._clock.monotonic() - self._last

    def wait(self) -> None:
        """Wait until a call may be made."""
        self._clock.sleep(SHORTEST_SECONDS - self.quiet_seconds)

    def call(self, request: Callable[[], T]) -> T:
        """Wait until a call may be made, and make it."""
        self.wait()
        try:
            return request()
        finally:
            self._last = self._clock.monotonic()

    def require(self, request: Callable[[], T], what: str, do: str = "") -> T:
        """Make a call that has to be ``answered``."""
        return answered(lambda: self.call(request), what, do)


RATE_LIMIT = RateLimit(SYSTEM)
"""The rate limit of this process."""
