"""Rules on clocks: all clocks of a process ran equally, and the run's clock started in time.

A preloaded library can slow the clocks of the records' times, so that a run appears shorter. It can
slow neither the kernel's raw clock, if that is read by a system call, nor the kernel's uptime, nor
the clock of a file server, which are recorded too. Runs of earlier versions did not record them.

A clock that starts late hides earlier work. Its start has three sources: the scheduler, by the
primary's records of jobs; the primary; and the replicas, by the age of their processes. Each time
is bounded by the other two here instead of recomputed by the primary's code. In runs of earlier
versions and runs without a scheduler, the clock starts with the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from aiperf_hpc.formatting import duration
from aiperf_hpc.rules.consistency.evidence import Evidence
from aiperf_hpc.rules.consistency.journal import CLOCK_TOLERANCE, ClockReading, Journal, Process
from aiperf_hpc.rules.rule import Checked, Findings, Note
from aiperf_hpc.run import records
from aiperf_hpc.run.liveness import EVERY_SECONDS, STOPPED_SECONDS

BOOT_RESOLUTION = 0.01
"""Resolution of the kernel's uptime in seconds."""
LONGEST_GAP = 2.0 * EVERY_SECONDS
"""Maximum seconds of work between two readings; waiting for storage delays readings."""
FIRST_RECORDS = 2
"""Maximum number of records of a process without a reading: it failed or was idle."""


def timekeeping(run: Evidence) -> Findings:
    """All clocks of a process agree to a second per hour and were recorded often enough."""
    readings = sum(len(process.readings) for _, process in _processes(run))
    yield Checked(readings)
    if not (readings or run.manifest.monitored):
        return
    for where, process in _processes(run):
        yield from (f"{where}, {wrong}" for wrong in _missing(process))
        for reading in process.readings:
            yield from (f"{where}, record {reading.seq}: {wrong}" for wrong in _stamped(reading))
        for before, after in pairwise(process.readings):
            place, since = f"{where}, record {after.seq}", f"since record {before.seq}"
            yield from (f"{place}: {wrong} {since}" for wrong in unlike(before, after))
            yield from (Note(f"{place}: {other} {since}") for other in _set(before, after))


def _processes(run: Evidence) -> Iterator[tuple[str, Process]]:
    for path, journal in run.journals.items():
        where = str(path.relative_to(run.paths.root))
        for process in journal.processes:
            if isinstance(process.start.event, records.RunStarted | records.ReplicaStarted):
                yield where, process


def _missing(process: Process) -> Iterator[str]:
    """Yield the readings of its clocks that a process did not record."""
    start = process.start
    if not process.readings:
        if process.records > FIRST_RECORDS:
            yield f"record {start.seq}: the clocks of this process were not recorded"
        return
    if process.longest_unread > LONGEST_GAP:
        unread = duration(process.longest_unread)
        yield f"record {start.seq}: its clocks were not recorded for {unread}"
    last = process.readings[-1]
    if process.ended_utc is not None and process.ended_utc - last.utc > CLOCK_TOLERANCE:
        yield f"record {start.seq}: its clocks were not recorded when it ended"


def _stamped(reading: ClockReading) -> Iterator[str]:
    """Yield a difference between a record's times and the clocks in it."""
    clocks = reading.clocks
    off = (reading.utc - reading.mono) - (clocks.utc - clocks.monotonic)
    if abs(off) > CLOCK_TOLERANCE + clocks.spread_seconds:
        yield f"its times are {off:.3f} s off those of the clocks in it"


def unlike(before: ClockReading, after: ClockReading) -> Iterator[str]:
    """Yield the clocks that diverged between two successive readings.

    While a machine is suspended, the monotonic and the raw clock stop and the uptime continues.
    Time services adjust the monotonic clock by less than a second per hour.
    """
    one, other = before.clocks, after.clocks
    mono, raw, boot = other.monotonic - one.monotonic, other.raw - one.raw, other.boot - one.boot
    allowed = _allowed(before, after)
    if abs(mono - raw) > allowed:
        yield f"the monotonic clock ran {mono:.3f} s while the raw one ran {raw:.3f} s{_by(after)}"
    if raw - boot > allowed:
        yield f"the raw clock ran {raw:.3f} s while the uptime advanced {boot:.3f} s"


def _set(before: ClockReading, after: ClockReading) -> Iterator[str]:
    """Yield steps of UTC between two successive readings, by a time service or an administrator.

    All clocks of a paused virtual machine stop until a time service sets UTC. The result is INVALID
    by the rule ``clocks`` of its division, but the readings are consistent.
    """
    one, other = before.clocks, after.clocks
    utc, boot = other.utc - one.utc, other.boot - one.boot
    allowed = _allowed(before, after)
    if abs(utc - boot) > allowed:
        yield f"UTC ran {utc:.3f} s while the uptime advanced {boot:.3f} s{_by(after)}"
    drift = other.server.ahead_seconds - one.server.ahead_seconds
    allowed += one.server.precision_seconds + other.server.precision_seconds
    if abs(drift) > allowed:
        yield f"UTC moved {drift:+.3f} s against the file server's clock{_by(after)}"


def _allowed(before: ClockReading, after: ClockReading) -> float:
    """Return the seconds by which clocks may diverge between two successive readings."""
    one, other = before.clocks, after.clocks
    allowed = CLOCK_TOLERANCE * max(1.0, (other.raw - one.raw) / EVERY_SECONDS)
    return allowed + one.spread_seconds + other.spread_seconds + BOOT_RESOLUTION


def _by(reading: ClockReading) -> str:
    """Return the library that answered, after a comma."""
    by = reading.clocks.answered_by
    return f", answered by {by}," if by else ""


def clocks(run: Evidence) -> Findings:
    """The UTC and the monotonic times of each writer agree.

    A time service may set the UTC clock, and the monotonic clock stops during a suspension.
    """
    yield Checked(run.record_count)
    for path, journal in run.journals.items():
        where = path.relative_to(run.paths.root)
        for step in journal.steps:
            text = f"{where}, {step.text}"
            honest = run.is_honest(path, step)
            yield Note(f"{text}: the clock was set, or its machine suspended") if honest else text


class _Time(NamedTuple):
    """The time of an event in UTC seconds, its description, and the tolerance in seconds."""

    utc: float
    what: str
    slack: float


def clock(run: Evidence) -> Findings:
    """The clock started once, with the recorded event: the first node or all replicas ready."""
    waits = run.history.clock_starts != "now"
    yield Checked(len(_grants(run, math.inf)) + sum(1 for _ in _begins(run)) if waits else 0)
    begun = run.primary.records_of(records.RunStarted)
    clock_starts = run.primary.records_of(records.ClockStarted)
    if not begun:
        return
    utc, first = begun[0]
    if any(later.clock_starts != first.clock_starts for _, later in begun):
        yield "a later primary records another event as the start of the clock"
    if first.clock_starts == "now":
        if clock_starts:
            yield "a record starts the clock of a run whose clock started with it"
        return
    if not clock_starts:
        if run.samples:
            yield "samples were executed, and no record states when the clock started"
        return
    if len(clock_starts) > 1:
        yield f"the clock started {len(clock_starts)} times"
    stated, event = clock_starts[0]
    if event.start_utc > stated + CLOCK_TOLERANCE:
        yield f"the clock started {event.start_utc - stated:.3f} s after the record of it"
    if event.start_utc < utc:
        yield f"the clock started {utc - event.start_utc:.3f} s before the run"
    if first.clock_starts == "first":
        yield from _with_the_first(run, utc, stated, event.start_utc)
    else:
        yield from _with_the_last(run, stated, event.start_utc)
    yield from _queue(run, utc, stated, event)
    yield from _learned(run, stated, event.start_utc)


def _with_the_first(run: Evidence, begun: float, stated: float, start: float) -> Iterator[str]:
    """The clock started with the first node, neither before nor after it."""
    times = [*_grants(run, stated), *_begins(run)]
    for each in times:
        if start > max(begun, each.utc) + each.slack:
            yield f"the clock started {start - each.utc:.3f} s after {each.what}"
    earliest = min(times, default=None)
    if earliest is None:
        yield "the clock started, but no node was granted and no replica began"
    elif start < max(begun, earliest.utc) - earliest.slack and not run.lost_paths:
        yield f"the clock started {earliest.utc - start:.3f} s before {earliest.what}"


def _with_the_last(run: Evidence, stated: float, start: float) -> Iterator[str]:
    """The clock started as soon as the primary had read that all replicas were ready."""
    if start < stated - CLOCK_TOLERANCE:
        yield f"the clock started {stated - start:.3f} s before the record of it"
    ready = {
        attempt.replica.id
        for attempt in run.attempts
        for utc, _ in attempt.journal.records_of(records.ReplicaReady)
        if utc <= start + run.tolerance(attempt.replica)
    }
    if len(ready) < (wanted := run.manifest.replicas):
        yield f"the clock started when {len(ready)} of {wanted} replicas were ready"


def _queue(
    run: Evidence, begun: float, stated: float, event: records.ClockStarted
) -> Iterator[str]:
    """The recorded queue time agrees with the scheduler's reports up to that record."""
    states = run.primary.records_of(records.JobState)
    taken = [s.submitted_utc for utc, s in states if s.submitted_utc is not None and utc <= stated]
    if event.submitted_utc != (submitted := min(taken, default=begun)):
        off = event.submitted_utc - submitted
        late = f"{abs(off):.3f} s {_way(-off)}"
        yield f"the job was accepted {late} than recorded at the clock's start"
    first = min(_grants(run, stated), default=None)
    if first is not None and event.granted_utc != first.utc:
        off = event.granted_utc - first.utc
        late = f"{abs(off):.3f} s {_way(-off)}"
        yield f"the first node was granted {late} than recorded at the clock's start"


def _way(seconds: float) -> str:
    return "later" if seconds > 0 else "earlier"


def _learned(run: Evidence, stated: float, start: float) -> Iterator[str]:
    """Replicas recorded the start of the clock as the primary did, if they continued to work."""
    for attempt in run.attempts:
        learned = [each.start_utc for _, each in attempt.journal.records_of(records.ClockSeen)]
        for off in (other - start for other in learned if other != start):
            yield f"{attempt}: it recorded a clock that started {abs(off):.3f} s {_way(off)}"
        if not learned and _worked_on(attempt.journal, stated):
            yield f"{attempt}: it worked but never recorded the clock's start"


def _worked_on(journal: Journal, stated: float) -> bool:
    """Return whether an attempt trained long after the clock's start was recorded."""
    begun = journal.attempt_began_utc or 0.0
    last = journal.executed[-1].utc if journal.executed else 0.0
    return last > max(begun, stated) + STOPPED_SECONDS


def _grants(run: Evidence, until: float) -> list[_Time]:
    """Return the times of the scheduler's grants of nodes recorded up to ``until``, UTC seconds.

    The primary could not use later reports of a scheduler that did not answer before.
    """
    return [
        _Time(state.started_utc, f"the scheduler gave {state.replica} its node", CLOCK_TOLERANCE)
        for utc, state in run.primary.records_of(records.JobState)
        if state.started_utc is not None and utc <= until
    ]


def _begins(run: Evidence) -> Iterator[_Time]:
    """Yield the start times of the replicas' processes by their nodes' clocks."""
    for attempt in run.attempts:
        for utc, started in attempt.journal.records_of(records.ReplicaStarted):
            began = utc - started.alive_seconds
            yield _Time(began, f"{attempt}, began", run.tolerance(attempt.replica))
