"""Rules on rates: below the devices' peaks, and with a plausible variation.

Fabricated records can be as consistent as real ones. Their rates must not exceed the peak of the
replica's devices, as measured by the replica before its training and as published by the vendors,
and real durations vary. Runs of the simulated engine compute nothing and are not checked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from aiperf_hpc.formatting import few, si
from aiperf_hpc.ops_counter.rate_bounds import (
    LeastOperations,
    cpu_peak,
    least_executed,
    published_peak,
)
from aiperf_hpc.rules.consistency.evidence import Evidence
from aiperf_hpc.rules.consistency.journal import Executed, Journal
from aiperf_hpc.rules.rule import Checked, Findings, Note
from aiperf_hpc.system.description import Processors
from aiperf_hpc.trial import DevicePeak

MARGIN = 2.0
"""Maximum ratio of a rank's rate to its measured peak: the machine may have been busy during the
measurement, clocks may rise later, and large kernels may use FFT."""
BOOST = 1.25
"""Maximum ratio of a device's rate to its published peak, by a clock above the nominal one."""
WINOGRAD = 4.0
"""Factor by which Winograd's minimal filtering F(4 x 4, 3 x 3) reduces the multiplications of a
3 x 3 convolution: 36 instead of 144 (Lavin and Gray 2016)."""
EVEN = 1e-6
"""Relative difference below which two times per sample count as equal: 5 us in 5 s, less than the
duration of writing the record between them."""
LEAST_PAIRS = 12
"""Minimum number of compared pairs of spans, so that equal ones are not due to chance."""
MOST_EXACT = 2**53
"""Maximum samples of a span: larger numbers are implausible and not exact in floats."""


class Bound(NamedTuple):
    """An upper bound on the total rate of a replica's devices."""

    rate: float
    """Operations per second; infinite if unknown."""
    why: str


def rates(run: Evidence) -> Findings:
    """Samples take at least the time that the devices need, and their durations vary."""
    unmeasured: list[str] = []
    checked = 0
    for where, journal, executed in _computed(run):
        bound = min(bounds(run, journal), key=lambda bound: bound.rate)
        checked += len(executed) if bound.rate < math.inf else 0
        yield from (f"{where}: {wrong}" for wrong in incredible_peaks(journal))
        yield from _beyond(run, executed, bound)
        yield from (f"{where}: {wrong}" for wrong in even(executed))
        if executed and not journal.peaks:
            unmeasured.append(where)
    yield Checked(checked)
    if unmeasured:
        yield Note(f"no peak was measured by {few(unmeasured)}")


def _computed(run: Evidence) -> Iterator[tuple[str, Journal, list[Executed]]]:
    """Yield the attempts with a real engine, with their executions until the end."""
    for where, journal, executed in run.executions():
        if journal.started is not None and journal.started.engine != "simulated":
            yield where, journal, [span for span in executed if span.utc <= run.end]


def bounds(run: Evidence, journal: Journal) -> Iterator[Bound]:
    """Yield the bounds on a replica's rate: by measured and by published peaks of its devices."""
    ranks = run.config.replica.ranks
    measured = [max(peak.rates.values(), default=math.inf) for peak in journal.peaks.values()]
    if len(measured) < ranks:
        measured = [math.inf]
    rate = MARGIN * math.fsum(measured)
    yield Bound(rate, f"{MARGIN:g} times the peak that it measured")
    rate = BOOST * WINOGRAD * _published(run, journal, ranks)
    yield Bound(rate, f"{BOOST:g} x {WINOGRAD:g} times the published peak of its devices")


def _published(run: Evidence, journal: Journal, ranks: int) -> float:
    """Return the sum of the published peaks of a replica's devices; infinite if one is unknown."""
    known = [published_of(journal, rank, peak) for rank, peak in journal.peaks.items()]
    if len(known) >= ranks:
        return math.fsum(math.inf if each is None else each for each in known)
    started, precision = journal.started, run.config.training.precision
    if started is None:
        return math.inf
    machine = started.machine
    if machine.accelerators:
        used = (precision, "tf32") if precision == "fp32" else (precision,)
        peaks = [published_peak(machine.accelerators[0], each) or math.inf for each in used]
        return ranks * max(peaks)
    processors = _processors(journal, 0)
    if processors is None:
        return math.inf
    return ranks * (cpu_peak(len(machine.cores), processors, precision) or math.inf)


def published_of(journal: Journal, rank: int, peak: DevicePeak) -> float | None:
    """Return the published peak of the device that a rank measured, or None if it is unknown."""
    if peak.threads is None:
        return published_peak(peak.model, peak.precision)
    processors = _processors(journal, rank)
    return None if processors is None else cpu_peak(peak.threads, processors, peak.precision)


def _processors(journal: Journal, rank: int) -> Processors | None:
    """Return the processors of a rank's host, as described by the first rank on it."""
    own = journal.described.get(rank)
    hosts = [
        each for each in journal.described.values() if own is not None and each.host == own.host
    ]
    return next((each.node.processors for each in hosts if each.node is not None), None)


def incredible_peaks(journal: Journal) -> Iterator[str]:
    """Yield measured peaks that exceed the bound by the device's published peak."""
    for rank, peak in journal.peaks.items():
        published = published_of(journal, rank, peak)
        for kernel, rate in peak.rates.items():
            factor = BOOST * (WINOGRAD if kernel == "convolution" else 1.0)
            if published is not None and rate > factor * published:
                yield (
                    f"rank {rank} measured {si(rate, 'OPS')} ({kernel}, {peak.precision}), "
                    f"of {peak.model} {si(published, 'OPS')} are published"
                )


def _beyond(run: Evidence, executed: Iterable[Executed], bound: Bound) -> Iterator[str]:
    """Yield the fastest span of each trial whose rate exceeds the bound."""
    fastest: dict[str, tuple[float, Executed]] = {}
    timeless: Counter[str] = Counter()
    for span in executed:
        trial = run.history.trials.get(span.trial)
        if trial is None or not span.train_samples + span.validation_samples:
            continue
        if span.seconds <= 0.0:
            timeless[span.trial] += 1
            continue
        started = trial.started
        counted = LeastOperations(started.train_operations, started.validation_operations)
        # Counted operations first; the least executable ones require the graph.
        if _operations(span, counted) > bound.rate * span.seconds:
            rate = _operations(span, least_executed(run.graph(trial))) / span.seconds
            if rate > bound.rate and rate > fastest.get(span.trial, (0.0, span))[0]:
                fastest[span.trial] = rate, span
    for name, number in timeless.items():
        yield f"{name}: samples without elapsed time in {number} of its records"
    for name, (rate, span) in fastest.items():
        yield (
            f"{name} executed {si(rate, 'OPS')} for {span.seconds:.3f} s of epoch {span.epoch}, "
            f"more than {si(bound.rate, 'OPS')}, {bound.why}"
        )


def _operations(span: Executed, each: LeastOperations) -> int:
    return span.train_samples * each.training + span.validation_samples * each.forward


def even(executed: Sequence[Executed]) -> Iterator[str]:
    """Yield a failure if most spans have the same time per sample as the previous one.

    A few equal spans can be due to the clock's resolution. Spans of training and of evaluation are
    compared separately, within each trial.
    """
    before: dict[tuple[str, bool], float] = {}
    pairs = equal = 0
    for span in executed:
        samples = span.train_samples + span.validation_samples
        mixed = span.train_samples and span.validation_samples
        if mixed or not 0 < samples < MOST_EXACT:
            continue
        kind = span.trial, bool(span.train_samples)
        each, last = span.seconds / samples, before.get(kind)
        before[kind] = each
        if last is not None:
            pairs += 1
            equal += abs(each - last) <= EVEN * max(each, last)
    if pairs >= LEAST_PAIRS and 2 * equal > pairs:
        yield f"{equal} of {pairs} spans have implausibly equal times per sample"
