"""Rules on time: the duration of a run, its clocks, and its rates of operations."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Final

from aiperf_hpc import formatting
from aiperf_hpc.rules.rule import Each, Findings, Found, Required
from aiperf_hpc.rules.validity.evidence import RunEvidence
from aiperf_hpc.run.clocks import Clocks
from aiperf_hpc.run.history import ReplicaHistory
from aiperf_hpc.run.history.state import WINDOW_SECONDS

LEAST_HOURS: Final = 1.0
LEAST_FRACTION: Final = 0.99
"""Minimum duration of a run, as a fraction of the requested hours."""
MOST_DRIFT: Final = 1.0
"""Maximum drift between two clocks of a host, in seconds per hour."""
LEAST_READINGS: Final = 2
"""Minimum number of clock readings of each process: at its start and at its end."""
BOOT_RESOLUTION: Final = 0.01
"""Resolution of the kernel's uptime in seconds."""
MOST_AHEAD: Final = 60.0
"""Seconds by which the run's clock may be ahead of this host's."""
MOST_RATIO: Final = 5.0
"""Maximum ratio of a replica's rate in a window to its median rate."""


def hours(requested: float) -> Findings:
    """The planned run lasts at least ``LEAST_HOURS``."""
    yield Found(f"{requested:g} h")
    if requested < LEAST_HOURS:
        yield f"{requested:g} h; at least {LEAST_HOURS:g} h is required"


def clock_start(event: str) -> Findings:
    """The run's clock starts with the first node or with the run."""
    yield Found(event)
    if event == "all":
        yield "all; loading and staging would lie outside the clock"


def lasted(run: RunEvidence) -> Findings:
    """A run lasts at least ``LEAST_HOURS``."""
    found = _duration(run.final.elapsed_seconds, 3600.0 * LEAST_HOURS)
    yield Found(found)
    if run.final.elapsed_seconds < 3600.0 * LEAST_HOURS:
        yield f"{found}; at least {LEAST_HOURS:g} h is required"
    if run.history.end_utc is None:
        yield "the run has not ended"


def duration(run: RunEvidence) -> Findings:
    """A run lasts an hour and as long as requested, so that none is stopped at its best score."""
    yield from lasted(run)
    hours = max([run.manifest.hours, *(event.hours for _, event in run.history.run_starts)])
    requested = formatting.duration(3600.0 * hours)
    yield Required(f">= {LEAST_HOURS:g} h, >= {LEAST_FRACTION:.0%} of {requested}")
    least = LEAST_FRACTION * 3600.0 * hours
    if run.history.end_utc is not None and run.final.elapsed_seconds < least:
        found = _duration(run.final.elapsed_seconds, least)
        yield f"{found} of {requested} requested; at least {LEAST_FRACTION:.0%} is required"


def _duration(seconds: float, least: float) -> str:
    """Return a duration, in full if it would read as the required one although it is shorter."""
    text = formatting.duration(seconds)
    if seconds >= least or text != formatting.duration(least):
        return text
    return f"{formatting.distinct(seconds, least, 1, 'f')} s"


def end(run: RunEvidence) -> Findings:
    """The end of a run is not in the future."""
    until = run.history.end_utc
    if until is None or run.manifest.simulated:  # Simulated times have no meaning.
        yield Found("none" if until is None else "simulated")
        return
    try:
        value = f"{datetime.fromtimestamp(until, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        value = f"{until:g} s"
    yield Found(value)
    if until > run.now + MOST_AHEAD:
        yield f"{value} is in the future"


def clocks(run: RunEvidence) -> Findings:
    """No clock was slowed or set: all clocks of a host ran equally, and hosts' clocks agree."""
    read = {"the primary": run.history.primary_clocks}
    read |= {each.id: each.clocks for each in run.replicas if each.started is not None}
    drifts = {
        name: max((_apart(one, other) for one, other in pairwise(readings)), default=0.0)
        for name, readings in read.items()
    }
    yield Found(f"{max(drifts.values()):.3f} s of drift per hour")
    for name, drift in drifts.items():
        if len(read[name]) < LEAST_READINGS:
            yield Each(f"{name} did not record its clocks from its start to its end")
        elif drift > MOST_DRIFT:
            by = read[name][-1].answered_by
            yield Each(f"the clocks of {name} diverged by {drift:.3f} s per hour, answered by {by}")
    for each in run.replicas:
        if each.checked is not None:
            yield from map(Each, each.checked.problems)


def _apart(one: Clocks, other: Clocks) -> float:
    """Return the maximum drift between two clocks of a host, in seconds per hour."""
    monotonic, utc = other.monotonic - one.monotonic, other.utc - one.utc
    raw, boot = other.raw - one.raw, other.boot - one.boot
    unsure = one.spread_seconds + other.spread_seconds + BOOT_RESOLUTION
    served = one.server.precision_seconds + other.server.precision_seconds
    moved = abs(other.server.ahead_seconds - one.server.ahead_seconds) - served
    apart = max(abs(monotonic - raw), abs(utc - boot), moved) - unsure
    return max(0.0, apart) / max(1.0, raw / 3600.0)


def rates(run: RunEvidence) -> Findings:
    """No replica was much faster in one window than in its median window."""
    ratios = {each.id: _ratio(each) for each in run.replicas}
    yield Found(f"{max(ratios.values(), default=0.0):.2f} times the median")
    window = f"{WINDOW_SECONDS / 3600:g} h"
    for name, ratio in ratios.items():
        if ratio > MOST_RATIO:
            yield Each(f"{name} was {ratio:.1f} times as fast in {window} as in the median")


def _ratio(replica: ReplicaHistory) -> float:
    """Return the ratio of the maximum to the median work of the windows that are not idle."""
    done = [work for work in replica.work.values() if work]
    return max(done) / median(done) if done else 0.0


def peaks(run: RunEvidence) -> Findings:
    """No replica exceeded the measured peak of its ranks' devices in a window."""
    fractions = {each.id: _of_peak(run, each) for each in run.replicas if each.work}
    known = [each for each in fractions.values() if each is not None]
    yield Found(f"{max(known):.1%} of the peak" if known else "not measured")
    for name, fraction in fractions.items():
        if fraction is None:
            yield Each(f"{name} did not measure the peak of each of its devices")
        elif fraction > 1.0:
            yield Each(f"{name} computed at {fraction:.3g} times the peak of its devices")


def _of_peak(run: RunEvidence, replica: ReplicaHistory) -> float | None:
    """Return the highest rate of a window as a fraction of the replica's peak, or None if the peak
    is unknown."""
    rates = [max(peak.rates.values(), default=0.0) for peak in replica.peaks.values()]
    if len(rates) < run.config.replica.ranks or not all(rates):
        return None
    return max(replica.work.values()) / (WINDOW_SECONDS * sum(rates))
