"""A collective that notices when the other ranks no longer answer, and what its calls cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from aiperf_hpc.replica.parallel.collectives.base import Array, Buffer, Collective, Pending

LOOK_SECONDS = 0.5


class Watch:
    """Ends a wait that takes too long, from a thread of its own: the waiting one cannot."""

    def __init__(self, seconds: float, late: Callable[[str], None]) -> None:
        """Begin to watch.

        Args:
            seconds: how long a wait may take.
            late: told what is being waited for when it takes longer; does not return.
        """
        self._seconds = seconds
        self._late = late
        self._waiting: tuple[float, str] | None = None
        threading.Thread(target=self._look, name="watch", daemon=True).start()

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Limit the time of the block."""
        self._waiting = (time.monotonic(), what)
        try:
            yield
        finally:
            self._waiting = None

    def _look(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            waiting = self._waiting
            if waiting is not None and time.monotonic() - waiting[0] > self._seconds:
                self._late(f"no answer for {self._seconds:g} s to {waiting[1]}")


class _WatchedSum:
    def __init__(self, watch: Watch, pending: Pending) -> None:
        self._watch = watch
        self._pending = pending

    def wait(self) -> Buffer:
        with self._watch.waiting("a reduction of gradients"):
            return self._pending.wait()


class WatchedCollective:
    """A collective whose calls may not take for ever, but for the wait for rank 0's next command.

    Rank 0 may take its time, for storage or a plan; that it lives is seen by its heartbeats.
    """

    def __init__(self, inner: Collective, watch: Watch) -> None:
        self._inner = inner
        self._watch = watch
        self.name = inner.name
        self.copies = inner.copies
        self.rank = inner.rank
        self.size = inner.size
        self.local_rank = inner.local_rank
        self.local_size = inner.local_size
        self.abort = inner.abort
        self.close = inner.close
        self.waiting = watch.waiting

    def start_allreduce_sum(self, buffer: Buffer) -> _WatchedSum:
        """As ``Collective``'s; the wait for it is limited."""
        return _WatchedSum(self._watch, self._inner.start_allreduce_sum(buffer))

    def allreduce_sum(self, flat: Array) -> None:
        """As ``Collective``'s, limited."""
        with self._watch.waiting("an agreement of all ranks"):
            self._inner.allreduce_sum(flat)

    def barrier(self) -> None:
        """As ``Collective``'s, limited."""
        with self._watch.waiting("a barrier"):
            self._inner.barrier()

    def broadcast(self, array: Array) -> None:
        """As ``Collective``'s, limited."""
        with self._watch.waiting("a broadcast"):
            self._inner.broadcast(array)

    def command(self, words: Array) -> None:
        """As ``Collective``'s; rank 0's is limited: back ends hold some that nobody takes."""
        with self._watch.waiting("a command") if self.rank == 0 else nullcontext():
            self._inner.command(words)

    def gather(self, row: Array) -> Array:
        """As ``Collective``'s, limited."""
        with self._watch.waiting("a comparison of all ranks"):
            return self._inner.gather(row)
