"""The clocks that each process recorded at its start, every hour and at its end.

A library loaded before all others can slow the clocks that the records are stamped by, and so make
a run look shorter than it was. It cannot slow the kernel's raw clock as asked by a system call, the
kernel's own statement of its age, or the clock of a file server, which are recorded beside them.
Runs of earlier versions recorded none.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from aiperf_hpc.formatting import duration
from aiperf_hpc.run import records
from aiperf_hpc.run.liveness import EVERY_SECONDS
from aiperf_hpc.verification.evidence import Evidence, Failures, Note
from aiperf_hpc.verification.journal import CLOCK_TOLERANCE, Process, Reading

BOOT_RESOLUTION = 0.01
"""Seconds: what the kernel tells its age to."""
LONGEST_GAP = 2.0 * EVERY_SECONDS
"""Seconds that a process may work between two readings: a wait for storage makes one late."""
FIRST_RECORDS = 2
"""Records that a process may have written before its clocks: it died, or had nothing to do."""


def readings(run: Evidence) -> int:
    """Return how many readings of clocks the run has."""
    return sum(len(process.readings) for _, process in _processes(run))


def timekeeping(run: Evidence) -> Failures:
    """All clocks of a process ran alike, to a second an hour; and it recorded them often enough."""
    if not readings(run):
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
        where = str(path.relative_to(run.view.paths.root))
        for process in journal.processes:
            if isinstance(process.start.event, records.RunStarted | records.ReplicaStarted):
                yield where, process


def _missing(process: Process) -> Failures:
    """Yield what a process did not record of its clocks."""
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


def _stamped(reading: Reading) -> Failures:
    """Yield how a record's own times are not those of the clocks in it."""
    clocks = reading.clocks
    off = (reading.utc - reading.mono) - (clocks.utc - clocks.monotonic)
    if abs(off) > CLOCK_TOLERANCE + clocks.spread_seconds:
        yield f"its times are {off:.3f} s off those of the clocks in it"


def unlike(before: Reading, after: Reading) -> Failures:
    """Yield which clocks did not run alike from one reading to the next.

    Monotonic and raw clock stand still together while a machine is suspended, and the kernel's age
    goes on. Time services correct the monotonic clock by less than a second an hour.
    """
    one, other = before.clocks, after.clocks
    mono, raw, boot = other.monotonic - one.monotonic, other.raw - one.raw, other.boot - one.boot
    allowed = _allowed(before, after)
    if abs(mono - raw) > allowed:
        yield f"the monotonic clock ran {mono:.3f} s while the raw one ran {raw:.3f} s{_by(after)}"
    if raw - boot > allowed:
        yield f"the raw clock ran {raw:.3f} s while the kernel grew {boot:.3f} s older"


def _set(before: Reading, after: Reading) -> Iterator[str]:
    """Yield how UTC was set from one reading to the next, by a time service or an administrator.

    A paused virtual machine's clocks all stand still, until a time service sets UTC. The result is
    INVALID by the rule ``clocks`` of its division; the readings contradict nothing.
    """
    one, other = before.clocks, after.clocks
    utc, boot = other.utc - one.utc, other.boot - one.boot
    allowed = _allowed(before, after)
    if abs(utc - boot) > allowed:
        yield f"UTC ran {utc:.3f} s while the kernel grew {boot:.3f} s older{_by(after)}"
    drift = other.server.ahead_seconds - one.server.ahead_seconds
    allowed += one.server.precision_seconds + other.server.precision_seconds
    if abs(drift) > allowed:
        yield f"UTC moved {drift:+.3f} s against the file server's clock{_by(after)}"


def _allowed(before: Reading, after: Reading) -> float:
    """Return the seconds by which clocks may come apart from one reading to the next."""
    one, other = before.clocks, after.clocks
    allowed = CLOCK_TOLERANCE * max(1.0, (other.raw - one.raw) / EVERY_SECONDS)
    return allowed + one.spread_seconds + other.spread_seconds + BOOT_RESOLUTION


def _by(reading: Reading) -> str:
    """Return who answered, behind a comma."""
    by = reading.clocks.answered_by
    return f", answered by {by}," if by else ""
