"""How much one client may ask for, so that none keeps the others from their witness."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Final

MOST_CLIENTS: Final = 10_000
"""Clients that are remembered; the one that asked longest ago is forgotten first."""


class RateLimit:
    """Lets each client do something so often a minute, and a minute's worth at once."""

    def __init__(self, per_minute: int, now: Callable[[], float] = time.monotonic) -> None:
        self._most = float(per_minute)
        self._each = 60.0 / per_minute
        self._now = now
        self._lock = Lock()
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """What each client has left, and when that was, seconds."""

    def seconds_until(self, client: str) -> float:
        """Take one; return 0, or how long a client has to wait for its next."""
        with self._lock:
            now = self._now()
            left, since = self._left.pop(client, (self._most, now))
            left = min(self._most, left + (now - since) / self._each)
            allowed = left >= 1.0
            self._left[client] = (left - allowed, now)
            while len(self._left) > MOST_CLIENTS:
                self._left.popitem(last=False)
            return 0.0 if allowed else (1.0 - left) * self._each
