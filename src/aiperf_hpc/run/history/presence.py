"""The number of active replicas over time: a pure function of a run's history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from aiperf_hpc.run.history.query import RunHistory
from aiperf_hpc.run.history.replicas import ReplicaHistory
from aiperf_hpc.trial import JobPhase

GONE = (JobPhase.REQUEUED, JobPhase.LOST, JobPhase.DONE, JobPhase.FAILED)
"""Phases of a job whose replica is not active, regardless of its last record."""


class Presence(NamedTuple):
    """One attempt of a replica: from its first record to its end or its last heartbeat."""

    replica: str
    begin: float
    """Start, UTC seconds; the same unit as ``end``."""
    end: float


class Step(NamedTuple):
    """The number of active replicas from a time on."""

    utc: float
    replicas: int


def presences(history: RunHistory, until: float) -> list[Presence]:
    """Return the time span of each attempt of each replica, from the clock's start to ``until``.

    An attempt ends with its record of the end, when a later attempt of the replica starts, or with
    its last heartbeat if it failed. The latest attempt of an active replica lasts until ``until``.
    """
    start = history.start_utc
    if start is None:
        return []
    attempts = (attempt for r in history.replicas.values() for attempt in _attempts(r, until))
    within = (Presence(r, max(begin, start), min(end, until)) for r, begin, end in attempts)
    return sorted((each for each in within if each.end > each.begin), key=lambda p: p[1:])


def steps(presences: Sequence[Presence]) -> list[Step]:
    """Return each change of the number of replicas, in order of time."""
    changes = [(p.begin, 1) for p in presences] + [(p.end, -1) for p in presences]
    found: list[Step] = []
    count = 0
    for utc, several in groupby(sorted(changes), key=lambda change: change[0]):
        before, count = count, count + sum(by for _, by in several)
        if count != before:
            found.append(Step(utc, count))
    return found


def requested_nodes(history: RunHistory, nodes: int) -> int:
    """Return the currently requested number of nodes of a run that started with ``nodes``."""
    return history.nodes_requested[-1][1] if history.nodes_requested else nodes


def _attempts(replica: ReplicaHistory, until: float) -> Iterable[Presence]:
    latest = max(replica.starts, default=None)
    for attempt, begin in replica.starts.items():
        said = replica.alive.get(attempt, begin)
        lasts = attempt == latest and _is_at_work(replica)
        yield Presence(replica.id, begin, min(replica.fence(attempt), until if lasts else said))


def _is_at_work(replica: ReplicaHistory) -> bool:
    """Return whether the latest attempt has neither ended nor is known to have exited."""
    job, started = replica.job_state, replica.started_utc
    since = started is not None and replica.job_utc >= started
    gone = job is not None and job.phase in GONE and since
    return replica.ended is None and replica.exit_status is None and not gone
