"""What a rank does when others no longer answer: it says which, and ends this life of the replica.

Ranks that wait in vain cannot ask each other. So each leaves a mark in the folder of the
replica's life; after a moment those without one are known to be the ones that are gone, and the
first rank that is not writes it down. While all answer nothing is written or read.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from aiperf_hpc.errors import UNEXPECTED_STATUS
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.records import RanksLost

GRACE_SECONDS = 2.0
"""The time in which every rank that waits in vain leaves its mark."""
WRITING_SECONDS = 2.0
"""The time that the other ranks give the one that records who is gone."""


class RankFailureReporter:
    """Records which ranks no longer answer, in the folder of the replica's life, and ends this one.

    Args:
        folder: of this life of the replica.
        rank: this one's number.
        hosts: of all ranks.
        journal: rank 0's; other ranks open one of their own when they need it.
        end: ends this process with a status.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        hosts: Sequence[str],
        journal: JournalWriter | None = None,
        end: Callable[[int], NoReturn] = os._exit,
    ) -> None:
        self._folder = folder
        self._rank = rank
        self._hosts = hosts
        self._journal = journal
        self._end = end
        self._once = threading.Lock()

    def end(self, what: str) -> NoReturn:
        """Say which ranks are gone, and end this process; a second call waits for the end."""
        self._once.acquire()  # For good: this process ends here.
        self._say(what)
        try:
            self._report(what)
        finally:
            self._end(UNEXPECTED_STATUS)

    def _report(self, what: str) -> None:
        self._mark(self._rank).touch()
        time.sleep(GRACE_SECONDS)
        gone = [rank for rank in range(len(self._hosts)) if not self._mark(rank).exists()]
        left = [rank for rank in range(len(self._hosts)) if rank not in gone]
        reason = self._reason(gone, what)
        self._say(reason)
        if self._rank == left[0]:
            event = RanksLost(ranks=tuple(gone), reason=reason)
            if self._journal is not None:
                self._journal.append(event)
            else:
                with JournalWriter(self._folder / f"rank-{self._rank}.jsonl") as journal:
                    journal.append(event)
        else:
            time.sleep(WRITING_SECONDS)  # Whoever started the ranks ends all with the first one.

    def _say(self, text: str) -> None:
        sys.stderr.write(f"aiperf: rank {self._rank}: {text}\n")
        sys.stderr.flush()

    def _mark(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.waits"

    def _reason(self, gone: Sequence[int], what: str) -> str:
        names = ", ".join(f"rank {rank} on {self._hosts[rank]}" for rank in gone)
        if names:
            return f"{names} died or hangs: {what}"
        return f"the ranks wait for each other: {what}"
