"""When the clock of a run started that waited for its nodes, from what each process recorded.

A clock that starts late hides what was done before. What starts it is told by three: the
scheduler, in what the primary recorded of its jobs; the primary; and the replicas, of their
processes. Each time is bounded by those of the others here, not decided again by the primary's
code. Runs of earlier versions, and those that no scheduler queued, have a clock that starts with
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from aiperf_hpc.run import records
from aiperf_hpc.run.liveness import STOPPED_SECONDS
from aiperf_hpc.verification.evidence import Evidence, Failures
from aiperf_hpc.verification.journal import CLOCK_TOLERANCE, Journal


class _Time(NamedTuple):
    """When something was, UTC seconds, what it was, and by how much that may be wrong."""

    utc: float
    what: str
    slack: float


def checked(run: Evidence) -> int:
    """Return how many times of nodes and replicas there are to hold against the clock's start."""
    if run.history.clock_starts == "now":
        return 0
    return len(_grants(run, math.inf)) + sum(1 for _ in _begins(run))


def clock(run: Evidence) -> Failures:
    """The clock started once, with the first node or when all replicas were ready, as said."""
    begun, told = run.primary.told(records.RunStarted), run.primary.told(records.ClockStarted)
    if not begun:
        return
    utc, first = begun[0]
    if any(later.clock_starts != first.clock_starts for _, later in begun):
        yield "a later primary says that something else starts the clock"
    if first.clock_starts == "now":
        if told:
            yield "a record starts the clock of a run whose clock started with it"
        return
    if not told:
        if run.samples:
            yield "samples were executed, and no record says when the clock started"
        return
    if len(told) > 1:
        yield f"the clock started {len(told)} times"
    said, event = told[0]
    if event.start_utc > said + CLOCK_TOLERANCE:
        yield f"the clock started {event.start_utc - said:.3f} s after the record that says so"
    if event.start_utc < utc:
        yield f"the clock started {utc - event.start_utc:.3f} s before the run"
    if first.clock_starts == "first":
        yield from _with_the_first(run, utc, said, event.start_utc)
    else:
        yield from _with_the_last(run, said, event.start_utc)
    yield from _queue(run, utc, said, event)
    yield from _learned(run, said, event.start_utc)


def _with_the_first(run: Evidence, begun: float, said: float, start: float) -> Failures:
    """The clock started neither after the first node nor before it."""
    times = [*_grants(run, said), *_begins(run)]
    for each in times:
        if start > max(begun, each.utc) + each.slack:
            yield f"the clock started {start - each.utc:.3f} s after {each.what}"
    earliest = min(times, default=None)
    if earliest is None:
        yield "the clock started, but no node was granted and no replica began"
    elif start < max(begun, earliest.utc) - earliest.slack:
        yield f"the clock started {earliest.utc - start:.3f} s before {earliest.what}"


def _with_the_last(run: Evidence, said: float, start: float) -> Failures:
    """The clock started when the primary had seen that all replicas were ready, at once."""
    if start < said - CLOCK_TOLERANCE:
        yield f"the clock started {said - start:.3f} s before the record that says so"
    ready = {
        replica.id
        for replica in run.history.replicas.values()
        for journal in run.lives(replica).values()
        for utc, _ in journal.told(records.ReplicaReady)
        if utc <= start + run.tolerance(replica)
    }
    if len(ready) < (wanted := run.view.manifest.replicas):
        yield f"the clock started when {len(ready)} of {wanted} replicas were ready"


def _queue(run: Evidence, begun: float, said: float, event: records.ClockStarted) -> Failures:
    """The time in the queue is the scheduler's, as far as it had told it by then."""
    states = run.primary.told(records.JobState)
    taken = [s.submitted_utc for utc, s in states if s.submitted_utc is not None and utc <= said]
    if event.submitted_utc != (submitted := min(taken, default=begun)):
        off = event.submitted_utc - submitted
        yield f"the job was taken {abs(off):.3f} s {_way(-off)} than the clock's start says"
    first = min(_grants(run, said), default=None)
    if first is not None and event.granted_utc != first.utc:
        off = event.granted_utc - first.utc
        yield f"the first node was given {abs(off):.3f} s {_way(-off)} than the clock's start says"


def _way(seconds: float) -> str:
    return "later" if seconds > 0 else "earlier"


def _learned(run: Evidence, said: float, start: float) -> Failures:
    """What replicas learned of the clock is what the primary says, and who works on learns it."""
    for replica in run.history.replicas.values():
        for life, journal in run.lives(replica).items():
            learned = [each.start_utc for _, each in journal.told(records.ClockSeen)]
            for other in learned:
                if other != start:
                    off = abs(other - start)
                    yield (
                        f"{replica.id}, life {life}: it learned of a clock that started "
                        f"{off:.3f} s {_way(other - start)}"
                    )
            if not learned and _worked_on(journal, said):
                yield f"{replica.id}, life {life}: it worked and never learned of the clock's start"


def _worked_on(journal: Journal, said: float) -> bool:
    """Return whether a life trained long after it could read of the clock's start."""
    begun = journal.begins_a_life or 0.0
    last = journal.executed[-1].utc if journal.executed else 0.0
    return last > max(begun, said) + STOPPED_SECONDS


def _grants(run: Evidence, until: float) -> list[_Time]:
    """Return when the scheduler gave jobs their nodes, as recorded until a time, UTC seconds.

    What a silent scheduler told later the primary could not go by.
    """
    return [
        _Time(state.started_utc, f"the scheduler gave {state.replica} its node", CLOCK_TOLERANCE)
        for utc, state in run.primary.told(records.JobState)
        if state.started_utc is not None and utc <= until
    ]


def _begins(run: Evidence) -> Iterator[_Time]:
    """Yield when the processes of replicas began, by their nodes' clocks."""
    for replica in run.history.replicas.values():
        for life, journal in run.lives(replica).items():
            for utc, started in journal.told(records.ReplicaStarted):
                what = f"{replica.id}, life {life}, began"
                yield _Time(utc - started.alive_seconds, what, run.tolerance(replica))
