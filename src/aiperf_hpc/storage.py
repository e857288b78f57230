"""Waiting for storage that is full or away, instead of failing or losing what was to be written."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Protocol, TypeVar

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.errors import StorageError

T = TypeVar("T")

PASSING = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EREMOTEIO}
)
"""What a full disk, a quota, or a file server that restarts answers; it may pass."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0


class Persist(Protocol):
    """Carries out an action on storage."""

    def __call__(self, action: Callable[[], T], what: str) -> T:
        """Do ``action``; ``what`` names it in errors. Raises StorageError when it fails."""
        ...


def at_once(action: Callable[[], T], what: str) -> T:
    """Do ``action``, once."""
    try:
        return action()
    except OSError as error:
        raise _failed(what, error) from None


class Patience:
    """Repeats an action while its error may pass, until it is done or waiting is pointless."""

    def __init__(
        self,
        give_up: Callable[[], bool],
        *,
        clock: Clock = SYSTEM,
    ) -> None:
        """Make it.

        Args:
            give_up: asked before each pause; True ends the waiting.
            clock: what it pauses by.
        """
        self._give_up, self._clock = give_up, clock
        self.waited = 0.0
        """Seconds waited so far, in all."""

    def __call__(self, action: Callable[[], T], what: str) -> T:
        pause = FIRST_PAUSE
        while True:
            try:
                return action()
            except OSError as error:
                if error.errno not in PASSING or self._give_up():
                    raise _failed(what, error) from None
            began = self._clock.monotonic()
            self._clock.sleep(pause)
            self.waited += self._clock.monotonic() - began
            pause = min(2 * pause, LONGEST_PAUSE)


def _failed(what: str, error: OSError) -> StorageError:
    return StorageError(f"cannot write {what}: {error.strerror or error}")
