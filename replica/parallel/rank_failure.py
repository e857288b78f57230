"""Timeouts of collective calls, and the end of an attempt whose ranks are lost.

Ranks whose call timed out cannot communicate. Each creates a marker file in the folder of the
replica's attempt. After a grace period, ranks without a marker count as lost, and the first
remaining rank records them. While all ranks answer, nothing is written or read.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from aiperf_hpc.errors import UNEXPECTED_STATUS
from aiperf_hpc.replica.parallel.collectives import Buffer, Collective, PendingSum
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.records import RanksLost
from aiperf_hpc.streams import warn

GRACE_SECONDS = 2.0
"""Grace period in seconds in which every rank whose call timed out creates its marker."""
WRITING_SECONDS = 2.0
"""Seconds that the other ranks wait for the one that records the lost ranks."""
LOOK_SECONDS = 0.5
"""Interval in seconds of the checks for a timeout."""


@dataclass(eq=False)
class RankFailureReporter:
    """Records which ranks no longer answer, and ends this process."""

    folder: Path
    """Folder of this attempt of the replica."""
    rank: int
    """Number of this rank."""
    hosts: Sequence[str]
    """Host of each rank."""
    journal: JournalWriter | None = None
    """Journal of rank 0; other ranks open their own when needed."""
    end_process: Callable[[int], NoReturn] = os._exit
    """Ends this process with a status."""
    _once: threading.Lock = field(default_factory=threading.Lock, init=False)

    def end(self, what: str) -> NoReturn:
        """Report the lost ranks, and end this process; a second call waits for the end."""
        self._once.acquire()  # Never released: this process ends here.
        self._print(what)
        try:
            self._report(what)
        finally:
            self.end_process(UNEXPECTED_STATUS)

    def _report(self, what: str) -> None:
        self._mark(self.rank).touch()
        time.sleep(GRACE_SECONDS)
        lost = [rank for rank in range(len(self.hosts)) if not self._mark(rank).exists()]
        left = [rank for rank in range(len(self.hosts)) if rank not in lost]
        reason = self._reason(lost, what)
        self._print(reason)
        if self.rank == left[0]:
            event = RanksLost(ranks=tuple(lost), reason=reason)
            if self.journal is not None:
                self.journal.append(event)
            else:
                with JournalWriter(self.folder / f"rank-{self.rank}.jsonl") as journal:
                    journal.append(event)
        else:
            time.sleep(WRITING_SECONDS)  # The launcher ends all ranks after the first.

    def _print(self, text: str) -> None:
        warn(f"rank {self.rank}: {text}")

    def _mark(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.waits"

    def _reason(self, lost: Sequence[int], what: str) -> str:
        names = ", ".join(f"rank {rank} on {self.hosts[rank]}" for rank in lost)
        if names:
            return f"{names} died or hangs: {what}"
        return f"the ranks wait for each other: {what}"


class Watch:
    """Watchdog thread for waits."""

    def __init__(self, seconds: float, late: Callable[[str], None]) -> None:
        """Start the watchdog.

        Args:
            seconds: timeout of a wait.
            late: called with the name of a wait that timed out; does not return.
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


class WatchedCollective:
    """A collective whose calls time out, except for the wait for rank 0's next command.

    Rank 0 may be busy with storage or planning; its heartbeats show that it is alive.
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
        self.allreduce_sum = watch.waiting("an agreement of all ranks")(inner.allreduce_sum)
        self.barrier = watch.waiting("a barrier")(inner.barrier)
        self.broadcast = watch.waiting("a broadcast")(inner.broadcast)
        self.gather = watch.waiting("a comparison of all ranks")(inner.gather)
        # On other ranks, this is the wait for rank 0's next command.
        command = inner.command
        self.command = command if inner.rank else watch.waiting("a command")(command)

    def start_allreduce_sum(self, buffer: Buffer) -> PendingSum:
        """As in ``Collective``; waiting for the result has a timeout."""
        wait = self._inner.start_allreduce_sum(buffer)
        return self._watch.waiting("a reduction of gradients")(wait)
