"""Rules on how a run went: its time, its replicas from beginning to end, its rates, its records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Final

from aiperf_hpc.ops_counter.divisions.evidence import RunEvidence, told
from aiperf_hpc.ops_counter.divisions.plan import LEAST_HOURS
from aiperf_hpc.ops_counter.divisions.rule import RuleCheck
from aiperf_hpc.run.clocks import Clocks
from aiperf_hpc.run.history import ReplicaHistory
from aiperf_hpc.run.history.state import WINDOW_SECONDS
from aiperf_hpc.run.liveness import own_limit

LEAST_SHARE: Final = 0.99
"""The share of the hours asked for that a run has to last."""
MOST_DRIFT: Final = 1.0
"""Seconds an hour by which two clocks of a host may come apart."""
LEAST_READINGS: Final = 2
"""Readings of the clocks that each process makes: at its start and at its end."""
BOOT_RESOLUTION: Final = 0.01
"""Seconds: what the kernel tells its age to."""
MOST_RATIO: Final = 5.0
"""How much faster a replica may be in a window than in half of its windows."""


def duration(run: RunEvidence) -> RuleCheck:
    """A run lasts an hour, and as long as it was to: none is cut at its best moment."""
    hours = run.final.elapsed / 3600.0
    asked = max([run.manifest.hours, *(event.hours for _, event in run.history.run_starts)])
    limit = f">= {LEAST_HOURS:g} h, >= {LEAST_SHARE:.0%} of {asked:g} h"
    return RuleCheck.of("duration", f"{hours:.6g} h", limit, _too_short(run, hours, asked))


def _too_short(run: RunEvidence, hours: float, asked: float) -> Iterator[str]:
    if hours < LEAST_HOURS:
        yield f"{hours:.6g} h; at least {LEAST_HOURS:g} h is required"
    if run.history.end_utc is None:
        yield "the run has not ended"
    elif hours < LEAST_SHARE * asked:
        yield f"{hours:.6g} h of {asked:g} h asked for; at least {LEAST_SHARE:.0%} is required"


def end(run: RunEvidence) -> RuleCheck:
    """A run that has ended has not ended tomorrow."""
    until = run.history.end_utc
    if until is None or run.manifest.simulated:  # Whose time is that of a simulation.
        return RuleCheck("end", "none" if until is None else "simulated", "not in the future")
    try:
        value = f"{datetime.fromtimestamp(until, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        value = f"{until:g} s"
    broken = (f"{value} is yet to come",) if until > run.now else ()
    return RuleCheck("end", value, "not in the future", broken)


def replicas(run: RunEvidence) -> RuleCheck:
    """Every replica that was launched left records and ended in order, and no other did."""
    asked = run.manifest.replicas
    ended = sum(1 for each in run.replicas if _in_order(each))
    broken = [] if len(run.replicas) == asked else [f"{len(run.replicas):,} of {asked:,} replicas"]
    return RuleCheck.of(
        "replicas", f"{ended:,} ended in order", f"{asked:,}", [*broken, *told(_lost(run))]
    )


def _lost(run: RunEvidence) -> Iterator[str]:
    for each in run.replicas:
        if each.job is None:
            yield f"{each.id} was never launched"
        elif each.started is None:
            yield f"{each.id} left no record"
        elif each.ended is None:
            yield f"{each.id} has not ended"
        elif not _in_order(each):
            yield f"{each.id} {each.ended}"


def _in_order(replica: ReplicaHistory) -> bool:
    return replica.ended is not None and not replica.ended.startswith("failed")


def heartbeats(run: RunEvidence) -> RuleCheck:
    """No life of a replica was silent for long."""
    period = run.config.journal.heartbeat_seconds
    most = own_limit(period)
    silent = {each.id: _silence(run, each) for each in run.replicas if each.started is not None}
    longest = max(silent.values(), default=0.0)
    broken = (f"{name} was silent for {s:.1f} s" for name, s in silent.items() if s > most)
    limit = f"<= {most:g} s, {most / period:g} periods"
    return RuleCheck.of("heartbeats", f"{longest:.1f} s apart", limit, told(broken))


def _silence(run: RunEvidence, replica: ReplicaHistory) -> float:
    since = 0.0 if replica.ended is not None else run.end - replica.alive_utc
    return max(replica.longest_silence, since)


def clocks(run: RunEvidence) -> RuleCheck:
    """No clock was slowed or set: all clocks of a host ran alike, and hosts' clocks agree."""
    read = {"the primary": run.history.primary_clocks}
    read |= {each.id: each.clocks for each in run.replicas if each.started is not None}
    drifts = {name: _drift(readings) for name, readings in read.items()}
    limit = f"<= {MOST_DRIFT:g} s an hour apart"
    value = f"{max(drifts.values()):.3f} s apart"
    return RuleCheck.of("clocks", value, limit, told(_clock_problems(run, read, drifts)))


def _clock_problems(
    run: RunEvidence, read: Mapping[str, Sequence[Clocks]], drifts: Mapping[str, float]
) -> Iterator[str]:
    for name, drift in drifts.items():
        if len(read[name]) < LEAST_READINGS:
            yield f"{name} did not record its clocks from its start to its end"
        elif drift > MOST_DRIFT:
            by = read[name][-1].answered_by
            yield f"the clocks of {name} came {drift:.3f} s an hour apart, answered by {by}"
    for each in run.replicas:
        if each.checked is not None:
            yield from each.checked.problems


def _drift(readings: Sequence[Clocks]) -> float:
    """Return how far two clocks of a host came apart between two readings, in seconds an hour."""
    return max((_apart(one, other) for one, other in pairwise(readings)), default=0.0)


def _apart(one: Clocks, other: Clocks) -> float:
    monotonic, utc = other.monotonic - one.monotonic, other.utc - one.utc
    raw, boot = other.raw - one.raw, other.boot - one.boot
    unsure = one.spread_seconds + other.spread_seconds + BOOT_RESOLUTION
    served = one.server.precision_seconds + other.server.precision_seconds
    moved = abs(other.server.ahead_seconds - one.server.ahead_seconds) - served
    apart = max(abs(monotonic - raw), abs(utc - boot), moved) - unsure
    return max(0.0, apart) / max(1.0, raw / 3600.0)


def rates(run: RunEvidence) -> RuleCheck:
    """No replica was many times as fast in one window as it mostly is."""
    ratios = {each.id: _ratio(each) for each in run.replicas}
    broken = (
        f"{name} was {ratio:.1f} times as fast in {WINDOW_SECONDS / 3600:g} h as in the median"
        for name, ratio in ratios.items()
        if ratio > MOST_RATIO
    )
    value = f"{max(ratios.values(), default=0.0):.2f} times the median"
    limit = f"<= {MOST_RATIO:g} times the replica's median"
    return RuleCheck.of("rates", value, limit, told(broken))


def _ratio(replica: ReplicaHistory) -> float:
    """Return the most work of a window over the median of those with any."""
    done = [work for work in replica.work.values() if work]
    return max(done) / median(done) if done else 0.0


def peaks(run: RunEvidence) -> RuleCheck:
    """No replica was faster in a window than its ranks' devices were measured to be."""
    shares = {each.id: _share(run, each) for each in run.replicas if each.work}
    highest = max((share for share in shares.values() if share is not None), default=0.0)
    return RuleCheck.of(
        "peaks", f"{highest:.1%} of the peak", "<= 100%", told(_above_peaks(shares))
    )


def _above_peaks(shares: Mapping[str, float | None]) -> Iterator[str]:
    for name, share in shares.items():
        if share is None:
            yield f"{name} did not measure the peak of each of its devices"
        elif share > 1.0:
            yield f"{name} did {share:.3g} times what its devices can do at most"


def _share(run: RunEvidence, replica: ReplicaHistory) -> float | None:
    """Return the highest rate of a window over the replica's peak; None where that is unknown."""
    rates = [max(peak.rates.values(), default=0.0) for peak in replica.peaks.values()]
    if len(rates) < run.config.replica.ranks or not all(rates):
        return None
    return max(replica.work.values()) / (WINDOW_SECONDS * sum(rates))


def staging(run: RunEvidence) -> RuleCheck:
    """A copy on a node's disk was made within the run; none of an earlier one was found there."""
    if run.config.dataset.cache != "disk":
        return RuleCheck("staging", "none", "in the run's time")
    moved = sum(each.staged_bytes for each in run.replicas)
    return RuleCheck.of(
        "staging", f"{moved / 1e9:.1f} GB copied", "in the run's time", told(_found_there(run))
    )


def _found_there(run: RunEvidence) -> Iterator[str]:
    copied = {_host(each) for each in run.replicas if each.staged_bytes}
    for each in run.replicas:
        if each.loads and _host(each) not in copied:
            yield f"{each.id} found a copy of an earlier run; remove it before the start"


def _host(replica: ReplicaHistory) -> str:
    return "" if replica.machine is None else replica.machine.host


def records(run: RunEvidence) -> RuleCheck:
    """Every line of every journal is a record in its place."""
    root, problems = run.history.paths.root, run.history.problems
    broken = tuple(f"{p.path.relative_to(root)}, line {p.line}: {p.what}" for p in problems)
    return RuleCheck("records", f"{len(broken):,} damaged lines", "none", broken)
