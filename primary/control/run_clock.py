"""When the clock of a run starts: once its first node is granted, or once all replicas are ready.

docs/decisions/clock.md says why. Whatever is decided follows from the run's records, so that
`aiperf verify` can decide it again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.primary.launchers.base import WaitLimit
from aiperf_hpc.run.history import ReplicaHistory, RunHistory
from aiperf_hpc.run.records import ClockStarted, ClockStarts

TOLERANCE = 1.0
"""Seconds by which two clocks may differ without a complaint; schedulers tell whole seconds."""


class _Grant(NamedTuple):
    """Since when a replica has its node, UTC seconds, and who it is."""

    utc: float
    replica: str


class RunClock:
    """Looks for what starts the clock of one run, until it has started."""

    def __init__(
        self,
        history: RunHistory,
        starts: ClockStarts,
        replicas: int,
        clock: Clock,
        *,
        grace: float,
        wait_limit: WaitLimit | None = None,
    ) -> None:
        """Look at nothing yet.

        Args:
            history: the run's, which others refresh.
            starts: what starts the clock.
            replicas: how many the run has.
            clock: the primary's.
            grace: seconds for which either of the scheduler and the first node is waited for when
                the other has said that it runs.
            wait_limit: how long a node may wait for the others; None for ever.
        """
        self._history = history
        self._starts = starts
        self._replicas = replicas
        self._clock = clock
        self._grace = grace
        self._wait_limit = wait_limit or WaitLimit()
        self._since: float | None = None

    def due(self, *, last: bool = False) -> ClockStarted | None:
        """Return the start of the clock, if the records tell of it by now.

        Args:
            last: whether nobody is waited for any more, because the run ends.
        """
        if not self._history.run_starts:
            return None  # The journal cannot be read now.
        begun, _ = self._history.run_starts[0]
        with self._history.lock:
            replicas = list(self._history.replicas.values())
        if self._starts == "all":
            return self._of_all(replicas, begun)
        granted, began = _first("granted_utc", replicas), _first("began_utc", replicas)
        known = [each for each in (granted, began) if each is not None]
        if not known or not (len(known) == 2 or last or self._patience_is_over()):
            return None
        first = min(known)
        return ClockStarted(
            start_utc=max(begun, first.utc),
            replica=first.replica,
            submitted_utc=_submitted(replicas, begun),
            granted_utc=(granted or first).utc,
            problem=_problem(replicas, begun),
        )

    def overdue(self) -> str | None:
        """Return why the run cannot start any more: its first node has waited for too long."""
        with self._history.lock:
            replicas = list(self._history.replicas.values())
        first = _first("granted_utc", replicas)
        if self._starts == "first" or first is None:
            return None
        if self._clock.utc() - first.utc < self._wait_limit.seconds:
            return None
        ready, minutes = len(self._history.ready), self._wait_limit.seconds / 60.0
        return (
            f"{ready} of {self._replicas} replicas were ready {minutes:.0f} min after the first "
            f"node was granted; raise {self._wait_limit.setting}, or take --start-when first"
        )

    def _patience_is_over(self) -> bool:
        now = self._clock.monotonic()
        self._since = now if self._since is None else self._since
        return now >= self._since + self._grace

    def _of_all(self, replicas: list[ReplicaHistory], begun: float) -> ClockStarted | None:
        ready = self._history.ready
        if len(ready) < self._replicas:
            return None
        last = max(ready, key=lambda replica: replica.ready_utc or 0.0)
        granted = _first("granted_utc", replicas) or _first("began_utc", replicas)
        return ClockStarted(
            start_utc=self._clock.utc(),
            replica=last.id,
            submitted_utc=_submitted(replicas, begun),
            granted_utc=begun if granted is None else granted.utc,
            problem=_problem(replicas, begun),
        )


def start_at_the_end(history: RunHistory, replicas: int) -> list[ClockStarted]:
    """Return the start of the clock of a run that ends, where its primary did not come to it.

    Args:
        history: the run's, as of now.
        replicas: how many it has.
    """
    if history.start_utc is not None or history.clock_starts == "now":
        return []
    clock = RunClock(history, history.clock_starts, replicas, SYSTEM, grace=0.0)
    due = clock.due(last=True)
    return [] if due is None else [due]


def _first(what: str, replicas: list[ReplicaHistory]) -> _Grant | None:
    """Return the earliest of a time of the replicas; None where none has it."""
    found = [_Grant(utc, r.id) for r in replicas if (utc := getattr(r, what)) is not None]
    return min(found, default=None)


def _submitted(replicas: list[ReplicaHistory], begun: float) -> float:
    """Return when the nodes were requested, by the scheduler's clock or else the primary's."""
    return min((r.submitted_utc for r in replicas if r.submitted_utc is not None), default=begun)


def _problem(replicas: list[ReplicaHistory], begun: float) -> str:
    """Return how the scheduler's clock is off, where that shows; empty where it does not."""
    behind = begun - _submitted(replicas, begun)
    if behind > TOLERANCE:
        return (
            f"the scheduler's clock is {behind:.1f} s behind the primary's: it took the job before "
            "the run began"
        )
    gaps: Mapping[str, float] = {
        r.id: r.granted_utc - r.began_utc
        for r in replicas
        if r.granted_utc is not None and r.began_utc is not None
    }
    ahead, who = max(((gap, name) for name, gap in gaps.items()), default=(-math.inf, ""))
    if ahead > TOLERANCE:
        return (
            f"the scheduler's clock is {ahead:.1f} s ahead of the node's of {who}, which began "
            "before the scheduler gave it its node"
        )
    return ""
