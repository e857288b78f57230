"""Start of a run's clock: when its first node is granted, or when all replicas are ready.

docs/decisions/clock.md gives the reasons. The start follows from the run's records only, so
`aiperf verify` can recompute it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.primary.launchers.base import WaitLimit
from aiperf_hpc.run.history import ReplicaHistory, RunHistory
from aiperf_hpc.run.records import ClockStarted, ClockStarts

TOLERANCE = 1.0
"""Tolerated difference of two clocks in seconds; schedulers report whole seconds."""


class _Grant(NamedTuple):
    """Time at which a replica got its node, UTC seconds, and the replica's name."""

    utc: float
    replica: str


@dataclass(eq=False)
class RunClock:
    """Detects the start of one run's clock."""

    history: RunHistory
    """Records of the run, which the owner refreshes."""
    starts: ClockStarts
    """Start condition of the clock."""
    replicas: int
    """Number of replicas."""
    clock: Clock
    """Clock of the primary."""
    _: KW_ONLY
    grace: float
    """Seconds to wait for the scheduler's report after the first node's, or for the first node's
    after the scheduler's."""
    wait_limit: WaitLimit = WaitLimit()
    """Limit of the time for which a node may wait for the others."""

    def __post_init__(self) -> None:
        self._since: float | None = None

    def due(self, *, last: bool = False) -> ClockStarted | None:
        """Return the start of the clock, or None if the records do not contain it yet.

        Args:
            last: decide without further waiting, because the run ends.
        """
        if not self.history.run_starts:
            return None  # The journal is currently unreadable.
        begun, _ = self.history.run_starts[0]
        with self.history.lock:
            replicas = list(self.history.replicas.values())
        granted, began = _first("granted_utc", replicas), _first("began_utc", replicas)
        known = [each for each in (granted, began) if each is not None]
        if self.starts == "all":
            if len(ready := self.history.ready) < self.replicas:
                return None
            start, replica = self.clock.utc(), max(ready, key=lambda r: r.ready_utc or 0.0).id
        else:
            if not known or not (len(known) == 2 or last or self._patience_is_over()):
                return None
            first = min(known)
            start, replica = max(begun, first.utc), first.replica
        return ClockStarted(
            start_utc=start,
            replica=replica,
            submitted_utc=_submitted(replicas, begun),
            granted_utc=known[0].utc if known else begun,
            problem=_problem(replicas, begun),
        )

    def overdue(self) -> str | None:
        """Return why the run can no longer start: its first node has exceeded the wait limit."""
        with self.history.lock:
            replicas = list(self.history.replicas.values())
        first = _first("granted_utc", replicas)
        if self.starts == "first" or first is None:
            return None
        if self.clock.utc() - first.utc < self.wait_limit.seconds:
            return None
        ready, minutes = len(self.history.ready), self.wait_limit.seconds / 60.0
        return (
            f"{ready} of {self.replicas} replicas were ready {minutes:.0f} min after the first "
            f"node was granted; raise {self.wait_limit.setting}, or use --start-when first"
        )

    def _patience_is_over(self) -> bool:
        now = self.clock.monotonic()
        self._since = now if self._since is None else self._since
        return now >= self._since + self.grace


def start_at_the_end(history: RunHistory, replicas: int) -> list[ClockStarted]:
    """Return the clock's start of an ending run whose primary has not recorded it.

    Args:
        history: current records of the run.
        replicas: number of replicas.
    """
    if history.start_utc is not None or history.clock_starts == "now":
        return []
    clock = RunClock(history, history.clock_starts, replicas, SYSTEM, grace=0.0)
    due = clock.due(last=True)
    return [] if due is None else [due]


def _first(what: str, replicas: list[ReplicaHistory]) -> _Grant | None:
    """Return the earliest of the replicas' times, or None if no replica has one."""
    found = [_Grant(utc, r.id) for r in replicas if (utc := getattr(r, what)) is not None]
    return min(found, default=None)


def _submitted(replicas: list[ReplicaHistory], begun: float) -> float:
    """Return the time at which the nodes were requested, by the scheduler's or primary's clock."""
    return min((r.submitted_utc for r in replicas if r.submitted_utc is not None), default=begun)


def _problem(replicas: list[ReplicaHistory], begun: float) -> str:
    """Return a message about the scheduler's clock offset, or an empty string if none is seen."""
    behind = begun - _submitted(replicas, begun)
    if behind > TOLERANCE:
        return (
            f"the scheduler's clock is {behind:.1f} s behind the primary's: it accepted the job "
            "before the run began"
        )
    gaps: Mapping[str, float] = {
        r.id: r.granted_utc - r.began_utc
        for r in replicas
        if r.granted_utc is not None and r.began_utc is not None
    }
    ahead, who = max(((gap, name) for name, gap in gaps.items()), default=(-math.inf, ""))
    if ahead > TOLERANCE:
        return (
            f"the scheduler's clock is {ahead:.1f} s ahead of the node's of {who}, which started "
            "before the scheduler granted its node"
        )
    return ""
