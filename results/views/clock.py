"""Start of a run's clock, and the time spent waiting for nodes."""

from __future__ import annotations

from collections.abc import Iterator

from aiperf_hpc.formatting import duration
from aiperf_hpc.run.history import ReplicaHistory, RunHistory
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.records import ClockStarts
from aiperf_hpc.trial import JobPhase, Value


class ClockStatus(Value):
    """Clock of a run that waits for its nodes. Time before its start does not count for the
    score."""

    starts: ClockStarts
    """Event that starts the clock: the first node, or readiness of all replicas."""
    started_utc: float | None
    """Start of the clock in UTC seconds; None before it."""
    queue_seconds: float
    """Seconds in the scheduler's queue until the first node was allocated, or so far."""
    late_replicas: int
    """Number of replicas without a node at the start of the clock."""
    idle_node_seconds: float
    """Idle node seconds: before a node's own start if the clock was running, or while it waited for
    other nodes if the clock had not started."""
    problem: str
    """Offset of the scheduler's clock, as text; empty if none is known."""


def clock_status(history: RunHistory, manifest: RunManifest, now: float) -> ClockStatus | None:
    """Return the clock at ``now`` (UTC seconds), or None if the run waited for nothing."""
    starts, event = history.clock_starts, history.clock_started
    if starts == "now" or history.run_started is None:
        return None
    replicas = list(history.replicas.values())
    submitted = [r.submitted_utc for r in replicas if r.submitted_utc is not None]
    granted = [utc for r in replicas if (utc := _granted(r)) is not None]
    queued = min(granted, default=now) - min(submitted, default=history.run_started.utc)
    # Replicas on nodes that were requested during the run are not late.
    first = {f"r{number}" for number in range(manifest.replicas)}
    idle = [_idle(r, history.start_utc, starts, now) for r in replicas if r.id in first]
    return ClockStatus(
        starts=starts,
        started_utc=history.start_utc,
        queue_seconds=max(0.0, queued) if event is None else event.queue_seconds,
        late_replicas=sum(seconds > 0.0 for seconds in idle) if starts == "first" else 0,
        idle_node_seconds=manifest.config.replica.nodes * sum(idle),
        problem="" if event is None else event.problem,
    )


def _granted(replica: ReplicaHistory) -> float | None:
    """Return when a replica got its node in UTC seconds, or None before that."""
    return replica.began_utc if replica.granted_utc is None else replica.granted_utc


def _idle(replica: ReplicaHistory, start: float | None, starts: ClockStarts, now: float) -> float:
    """Return the idle seconds of a replica's node while the clock ran, or while all waited."""
    granted = _granted(replica)
    if starts == "first":
        return 0.0 if start is None else max(0.0, (now if granted is None else granted) - start)
    return 0.0 if granted is None else max(0.0, (now if start is None else start) - granted)


def queue_reason(history: RunHistory, replicas: int) -> str:
    """Return a description of the event for which the clock of a run waits."""
    states = [r.job_state for r in history.replicas.values() if r.job_state is not None]
    if history.clock_starts == "all":
        return f"{len(history.ready)} of {replicas} replicas are ready"
    why = {s.detail: None for s in states if s.phase is JobPhase.PENDING and s.detail}
    return f"no node yet: {'; '.join(why)}" if why else "no node yet"


def clock_lines(clock: ClockStatus | None) -> Iterator[str]:
    """Yield the lines on waiting times for nodes, for a terminal or a file."""
    if clock is None:
        return
    said = f"{duration(clock.queue_seconds)} until the first node, not charged"
    if clock.late_replicas:
        late = f"{clock.late_replicas} replica{'s' * (clock.late_replicas > 1)} came later"
        said += f"; {late}: {clock.idle_node_seconds:,.0f} node-seconds idle, charged"
    elif clock.starts == "all" and clock.idle_node_seconds:
        said += f"; nodes waited for others: {clock.idle_node_seconds:,.0f} node-seconds"
    yield said
    if clock.problem:
        yield clock.problem
