"""When the clock of a run started, and how long its nodes were waited for."""

from __future__ import annotations

from collections.abc import Iterator

from aiperf_hpc.formatting import duration
from aiperf_hpc.run.history import ReplicaHistory, RunHistory
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.records import ClockStarts
from aiperf_hpc.trial import JobPhase, Value


class ClockStatus(Value):
    """The clock of a run that waits for its nodes. What it does not measure is not charged."""

    starts: ClockStarts
    """What starts it: the first node, or that all replicas are ready."""
    started_utc: float | None
    """When it started, UTC seconds; None while it stands."""
    queue_seconds: float
    """How long the first node was waited for in the queue, or has been so far."""
    late: int
    """Replicas without a node at the clock's start."""
    idle_node_seconds: float
    """Seconds of nodes that did not work: before their own start, where the clock ran, or while
    they waited for others, where it stood."""
    problem: str
    """How the scheduler's clock is off; empty where it is not, as far as that is known."""


def clock_status(history: RunHistory, manifest: RunManifest, now: float) -> ClockStatus | None:
    """Return what there is to say at ``now``, UTC seconds; None where nothing was waited for."""
    starts, event = history.clock_starts, history.clock_started
    if starts == "now" or history.run_started is None:
        return None
    replicas = list(history.replicas.values())
    submitted = [r.submitted_utc for r in replicas if r.submitted_utc is not None]
    granted = [utc for r in replicas if (utc := _granted(r)) is not None]
    queued = min(granted, default=now) - min(submitted, default=history.run_started.utc)
    # Who joins later, because nodes are asked for while the run lasts, is not late.
    first = {f"r{number}" for number in range(manifest.replicas)}
    idle = [_idle(r, history.start_utc, starts, now) for r in replicas if r.id in first]
    return ClockStatus(
        starts=starts,
        started_utc=history.start_utc,
        queue_seconds=max(0.0, queued) if event is None else event.queue_seconds,
        late=sum(seconds > 0.0 for seconds in idle) if starts == "first" else 0,
        idle_node_seconds=manifest.config.replica.nodes * sum(idle),
        problem="" if event is None else event.problem,
    )


def _granted(replica: ReplicaHistory) -> float | None:
    """Return since when a replica has a node, UTC seconds; None while it has none."""
    return replica.began_utc if replica.granted_utc is None else replica.granted_utc


def _idle(replica: ReplicaHistory, start: float | None, starts: ClockStarts, now: float) -> float:
    """Return for how long a replica's node did not work while the clock ran, or all waited."""
    granted = _granted(replica)
    if starts == "first":
        return 0.0 if start is None else max(0.0, (now if granted is None else granted) - start)
    return 0.0 if granted is None else max(0.0, (now if start is None else start) - granted)


def queue_reason(history: RunHistory, replicas: int) -> str:
    """Return what the clock of a run waits for."""
    states = [r.job_state for r in history.replicas.values() if r.job_state is not None]
    if history.clock_starts == "all":
        return f"{len(history.ready)} of {replicas} replicas are ready"
    why = {s.detail: None for s in states if s.phase is JobPhase.PENDING and s.detail}
    return f"no node yet: {'; '.join(why)}" if why else "no node yet"


def clock_lines(clock: ClockStatus | None) -> Iterator[str]:
    """Yield how long nodes were waited for, for a terminal or a file."""
    if clock is None:
        return
    said = f"{duration(clock.queue_seconds)} until the first node, not charged"
    if clock.late:
        late = f"{clock.late} replica{'s' * (clock.late > 1)} came later"
        said += f"; {late}: {clock.idle_node_seconds:,.0f} node-seconds idle, charged"
    elif clock.starts == "all" and clock.idle_node_seconds:
        said += f"; nodes waited for others: {clock.idle_node_seconds:,.0f} node-seconds"
    yield said
    if clock.problem:
        yield clock.problem
