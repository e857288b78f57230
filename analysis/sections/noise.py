"""Whose noise it is that runs which search differ by, the machine's or the search's."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence

from aiperf_hpc.analysis.metric import NotMeasuredError, measured
from aiperf_hpc.analysis.metrics.score import operations_per_second
from aiperf_hpc.analysis.metrics.statistics import (
    coefficient_of_variation,
    integrated_autocorrelation,
    length_for,
    log_shares,
)
from aiperf_hpc.analysis.training_log import SearchTimeline, TrainingLog
from aiperf_hpc.trial import Value

WINDOWS_FOR_TAU = 50
"""Autocorrelation times that a series must last for its own to be trusted (Sokal 1997)."""
PEAKS = "the rates measured with each run (peaks.json)"
_CPU, _ACCELERATOR = re.compile(r"\bcpu\b"), re.compile(r"\b(cuda|gpu|npu)\b")
"""What names the device in a kind of work, as in ``torch cuda:0 matrix product bf16``."""
INITIAL = "the training of the initial network, in the same batches, in each run"


class Factor(Value):
    """One factor of the operations per second."""

    name: str
    deviation: float
    """Standard deviation of its logarithm over the runs: about its coefficient of variation."""
    share: float
    """Of the variance of ln(OPS). All shares add up to one; one that evens others out is
    negative."""


class Noise(Value):
    """What the runs' operations per second differ by."""

    machine_by: str
    """By what the machine's own rate is known."""
    factors: tuple[Factor, ...]


class RunLength(Value):
    """How long a run must be for its operations per second to have a wanted standard error."""

    precision: float
    within_seconds: float | None
    """By how the rate varied within the runs."""
    no_within: str
    """Why that is not known; empty where it is."""
    steady: bool
    """Whether the runs were long enough for that to be more than a lower bound."""
    between_seconds: float | None
    """By how much the runs' results differ; None of one run."""


def noise_of(logs: Sequence[TrainingLog]) -> Noise:
    """Divide the variance of ln(OPS) over runs among the machine, the networks and the time.

    OPS = M x (R / M) x B: the machine's rate M at fixed work; the rate R in the time in which
    replicas executed samples, over M, which is what the search chose, architectures and batches;
    and the share B of the time in which they did. Shares are as ``log_shares`` divides them.

    Raises:
        NotMeasuredError: there is one run only, they do not differ, or nothing tells the
            machine's rate.
    """
    if len(logs) < 2:
        count = "one run only" if logs else "there is no whole run"
        raise NotMeasuredError(f"{count}: nothing to compare")
    scores = [operations_per_second(log) for log in logs]
    courses = [_course(log) for log in logs]
    machine, machine_by = _machine_rates(courses)
    work = [log.operations or 0 for log in logs]
    if not all(course.busy_seconds > 0.0 for course in courses) or not all(work):
        raise NotMeasuredError("a run executed nothing")
    rates = [each / course.busy_seconds for each, course in zip(work, courses, strict=True)]
    factors = {
        "machine": machine,
        "architectures and batches": [r / m for r, m in zip(rates, machine, strict=True)],
        "fraction of time at work": [s / r for s, r in zip(scores, rates, strict=True)],
    }
    shares = log_shares(scores, list(factors.values()))
    return Noise(
        machine_by=machine_by,
        factors=tuple(
            Factor(name=name, deviation=statistics.stdev(map(math.log, values)), share=share)
            for (name, values), share in zip(factors.items(), shares, strict=True)
        ),
    )


def _course(log: TrainingLog) -> SearchTimeline:
    if log.course is None:
        raise NotMeasuredError(f"{log.source} does not state what it executed when")
    return log.course


def _machine_rates(courses: Sequence[SearchTimeline]) -> tuple[list[float], str]:
    """Return each run's rate at the same work, and by what it is known: peaks before trainings."""
    for source, rates in ((PEAKS, _peak_rates), (INITIAL, _training_rates)):
        known = [rates(course) for course in courses]
        if kinds := sorted(set(known[0]).intersection(*known[1:])):
            return [statistics.geometric_mean(run[kind] for kind in kinds) for run in known], source
    raise NotMeasuredError(
        "the machine's rate is unknown: no network was trained in all runs in the same "
        "batches, and no peaks were measured with them"
    )


def _peak_rates(course: SearchTimeline) -> dict[str, float]:
    """Return the mean of each rate, before and after the run, of the device that trained.

    A host's processors may be busy with other work while its accelerators are not, so that the
    rates of the two say nothing of each other.
    """
    other = _CPU if course.on_accelerators else _ACCELERATOR
    kinds = {kind for peak in course.peaks for kind in peak.rates if not other.search(kind)}
    return {
        kind: statistics.fmean(p.rates[kind] for p in course.peaks if kind in p.rates)
        for kind in kinds
    }


def _training_rates(course: SearchTimeline) -> dict[str, float]:
    return {
        f"{each.network} {each.batch_size}": each.samples / each.seconds
        for each in course.throughputs
        if each.samples
    }


def run_length(logs: Sequence[TrainingLog], precision: float) -> RunLength:
    """Return how long runs must be for their operations per second to have a standard error.

    By the windows of each run from its first operations on, as ``length_for`` says, the mean over
    the runs; and by the runs' own coefficient of variation over a mean time T, T (CoV / p)². Both
    let the error fall as 1 / √T. What a search decides early stays with a run to its end, so that
    the second may be the longer one, however long runs are.

    Raises:
        NotMeasuredError: neither is known.
    """
    courses = [_course(log) for log in logs]
    rates = [_windows(course) for course in courses]
    steps = [course.window_seconds for course in courses]
    lengths, why = measured(
        lambda: [length_for(r, s, precision) for r, s in zip(rates, steps, strict=True)]
    )
    within = statistics.fmean(lengths) if lengths else None
    steady = within is not None and all(
        len(r) >= WINDOWS_FOR_TAU * integrated_autocorrelation(r) for r in rates
    )
    between = _between(logs, precision)
    if within is None and between is None:
        raise NotMeasuredError(why or "there is no whole run")
    return RunLength(
        precision=precision,
        within_seconds=within,
        no_within=why,
        steady=steady,
        between_seconds=between,
    )


def _windows(course: SearchTimeline) -> list[float]:
    """Return the rate in each window from the first operations on."""
    first = next((n for n, done in enumerate(course.operations) if done), 0)
    return [done / course.window_seconds for done in course.operations[first:]]


def _between(logs: Sequence[TrainingLog], precision: float) -> float | None:
    seconds = [log.run.seconds for log in logs if log.run is not None]
    known = [each for each in seconds if each is not None]
    if len(logs) < 2 or len(known) < len(logs):
        return None
    variation = coefficient_of_variation([operations_per_second(log) for log in logs])
    return statistics.fmean(known) * (variation / precision) ** 2
