"""What a machine can do: rates against peaks, and times as uneven as a machine's are.

Records that somebody makes up agree with each other as well as real ones do. They may not promise
more than the replica's own devices can compute, as measured by the replica before it trained and as
their makers publish it; nor do machines take the same time twice. Runs of a simulated engine
computed nothing, and are not looked at.
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
"""How much faster than the measured peak a rank may be: others were at work while it was measured,
a clock rises later, large kernels gain by FFT."""
BOOST = 1.25
"""How much faster than the published peak a device may be: its clock exceeds the one stated."""
WINOGRAD = 4.0
"""How many times fewer multiplications than counted a 3 x 3 convolution takes by Winograd's minimal
filtering F(4 x 4, 3 x 3): 36 instead of 144 (Lavin and Gray 2016)."""
EVEN = 1e-6
"""The relative difference of two times per sample below which they count as equal: 5 us in 5 s,
less than it takes to write the record between them."""
LEAST_PAIRS = 12
"""Spans that are compared with the one before, so that a few equal ones are no chance."""
MOST_EXACT = 2**53
"""A span of more samples is none of any machine; floats would not tell them apart."""


class Bound(NamedTuple):
    """What a replica's devices can compute together."""

    rate: float
    """Operations a second; infinite where nothing is known of them."""
    why: str


def rates(run: Evidence) -> Findings:
    """Samples take time, no less than the devices need, and not always the same."""
    unmeasured: list[str] = []
    checked = 0
    for where, life, executed in _computed(run):
        bound = min(bounds(run, life), key=lambda bound: bound.rate)
        checked += len(executed) if bound.rate < math.inf else 0
        yield from (f"{where}: {wrong}" for wrong in incredible_peaks(life))
        yield from _beyond(run, executed, bound)
        yield from (f"{where}: {wrong}" for wrong in even(executed))
        if executed and not life.peaks:
            unmeasured.append(where)
    yield Checked(checked)
    if unmeasured:
        yield Note(f"no peak was measured by {few(unmeasured)}")


def _computed(run: Evidence) -> Iterator[tuple[str, Journal, list[Executed]]]:
    """Yield the lives of replicas whose engine computes, with what they executed until the end."""
    for where, life, executed in run.executions():
        if life.started is not None and life.started.engine != "simulated":
            yield where, life, [span for span in executed if span.utc <= run.end]


def bounds(run: Evidence, life: Journal) -> Iterator[Bound]:
    """Yield what bounds a replica's rate: its measured peaks, and its devices' published ones."""
    ranks = run.config.replica.ranks
    measured = [max(peak.rates.values(), default=math.inf) for peak in life.peaks.values()]
    if len(measured) < ranks:
        measured = [math.inf]
    rate = MARGIN * math.fsum(measured)
    yield Bound(rate, f"{MARGIN:g} times the peak that it measured")
    rate = BOOST * WINOGRAD * _published(run, life, ranks)
    yield Bound(rate, f"{BOOST:g} x {WINOGRAD:g} times the peak that is published of its devices")


def _published(run: Evidence, life: Journal, ranks: int) -> float:
    """Return the sum of what is published of a replica's devices; infinite where one is unknown."""
    known = [published_of(life, rank, peak) for rank, peak in life.peaks.items()]
    if len(known) >= ranks:
        return math.fsum(math.inf if each is None else each for each in known)
    started, precision = life.started, run.config.training.precision
    if started is None:
        return math.inf
    machine = started.machine
    if machine.accelerators:
        used = (precision, "tf32") if precision == "fp32" else (precision,)
        peaks = [published_peak(machine.accelerators[0], each) or math.inf for each in used]
        return ranks * max(peaks)
    processors = _processors(life, 0)
    if processors is None:
        return math.inf
    return ranks * (cpu_peak(len(machine.cores), processors, precision) or math.inf)


def published_of(life: Journal, rank: int, peak: DevicePeak) -> float | None:
    """Return what is published of the device that a rank measured; None where it is not known."""
    if peak.threads is None:
        return published_peak(peak.model, peak.precision)
    processors = _processors(life, rank)
    return None if processors is None else cpu_peak(peak.threads, processors, peak.precision)


def _processors(life: Journal, rank: int) -> Processors | None:
    """Return the processors of a rank's host, which the first rank there told of."""
    own = life.described.get(rank)
    hosts = [each for each in life.described.values() if own is not None and each.host == own.host]
    return next((each.node.processors for each in hosts if each.node is not None), None)


def incredible_peaks(life: Journal) -> Iterator[str]:
    """Yield peaks that are higher than what is published of the device allows."""
    for rank, peak in life.peaks.items():
        published = published_of(life, rank, peak)
        for kernel, rate in peak.rates.items():
            factor = BOOST * (WINOGRAD if kernel == "convolution" else 1.0)
            if published is not None and rate > factor * published:
                yield (
                    f"rank {rank} measured {si(rate, 'OPS')} ({kernel}, {peak.precision}), "
                    f"of {peak.model} {si(published, 'OPS')} are published"
                )


def _beyond(run: Evidence, executed: Iterable[Executed], bound: Bound) -> Iterator[str]:
    """Yield the trials whose samples took less time than they can, the fastest span of each."""
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
        # As counted first: what can be left out of that takes a graph to tell.
        if _operations(span, counted) > bound.rate * span.seconds:
            rate = _operations(span, least_executed(run.graph(trial))) / span.seconds
            if rate > bound.rate and rate > fastest.get(span.trial, (0.0, span))[0]:
                fastest[span.trial] = rate, span
    for name, number in timeless.items():
        yield f"{name}: {number} records of samples that took no time"
    for name, (rate, span) in fastest.items():
        yield (
            f"{name} executed {si(rate, 'OPS')} for {span.seconds:.3f} s of epoch {span.epoch}, "
            f"more than {si(bound.rate, 'OPS')}, {bound.why}"
        )


def _operations(span: Executed, each: LeastOperations) -> int:
    return span.train_samples * each.training + span.validation_samples * each.forward


def even(executed: Sequence[Executed]) -> Iterator[str]:
    """Yield it if most spans take as long a sample as the one before them, to the last digits.

    Half of a dozen must: two in a row may, on a clock that ticks. Training is compared with
    training and evaluation with evaluation, of one trial.
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
        yield f"{equal} of {pairs} spans took as long a sample as the one before: no machine's do"
