"""The repeatability of runs as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from aiperf_hpc.primary.analyze.measures.repeatability import FEW
from aiperf_hpc.primary.analyze.sections.noise import Noise, RunLength
from aiperf_hpc.primary.analyze.sections.repeatability import (
    Interval,
    Repeatability,
    Repetition,
    TargetReached,
    Variation,
    Verdict,
)
from aiperf_hpc.primary.analyze.sections.similarity import Similarity
from aiperf_hpc.primary.formatting import duration, few, percent


def lines(of: Repeatability) -> Iterator[str]:
    """Yield the lines of the section."""
    for each in of.repetitions:
        yield from _repetition(each, of.precision)
    if of.single:
        yield f"  one run only, nothing to compare it with: {few(of.single)}"


def _repetition(of: Repetition, precision: float) -> Iterator[str]:
    yield f"  {of.name}: {len(of.runs)} run{'s' * (len(of.runs) != 1)} of {of.benchmark}"
    yield from (f"    note: {note}" for note in of.notes)
    yield from (f"    left out: {left}" for left in of.left_out)
    if any(each.few and each.interval for each in of.variations):
        yield f"    note: of fewer than {FEW} runs, bootstrapped intervals are too narrow"
    yield from (_variation(each, precision) for each in of.variations)
    if of.target is not None:
        yield _target(of.target)
    yield from (_verdict(each) for each in of.verdicts)
    if of.similarity is not None:
        yield _similarity(of.similarity)
    elif of.no_similarity:
        yield f"    similarity of predictions: not measured: {of.no_similarity}"
    if of.noise is not None:
        yield from _noise(of.noise)
    elif of.no_noise:
        yield f"    noise of machine and search: not measured: {of.no_noise}"
    if of.length is not None:
        yield from _length(of.length)
    elif of.no_length:
        yield f"    length of a run: not measured: {of.no_length}"


def _variation(of: Variation, precision: float) -> str:
    known = f" [{_interval(of.interval)}]" if of.interval else f" ({of.no_interval})"
    runs = f"{of.runs_needed:,}" if of.runs_needed is not None else "over a million"
    unit = f" {of.unit}" if of.unit else ""
    return (
        f"    {of.title}: {of.mean:.6g} ± {of.deviation:.3g}{unit}, CoV {percent(of.variation)}"
        f"{known}; {runs} runs for ±{percent(precision, 1)}"
    )


def _interval(of: Interval) -> str:
    high = "unbounded" if of.high is None else percent(of.high)
    return f"{percent(of.low)} to {high}, {of.method}"


def _target(of: TargetReached) -> str:
    return (
        f"    target reached: {of.reached} of {of.runs}, {percent(of.share, 1)} "
        f"[{_interval(of.interval)}]"
    )


def _verdict(of: Verdict) -> str:
    more = f"; about {of.runs_to_decide} would decide" if of.runs_to_decide else ""
    interval = f"{_interval(of.interval)}, each end at 95 %"
    return (
        f"    {of.verdict}: {of.measure}, CoV {percent(of.variation)} [{interval}], "
        f"limit {percent(of.limit, 1)}{more}"
    )


def _similarity(of: Similarity) -> str:
    return (
        f"    Jaccard similarity of predictions: {of.mean:.4f} ({of.least:.4f} to {of.most:.4f}), "
        f"{of.pairs} pairs of {len(of.runs)} networks"
    )


def _noise(of: Noise) -> Iterator[str]:
    yield f"    what the variance of ln(OPS) is due to, the machine by {of.machine_by}:"
    for factor in of.factors:
        yield f"      {factor.name}: {percent(factor.share, 1)} (alone {percent(factor.deviation)})"


def _length(of: RunLength) -> Iterator[str]:
    said = f"    for a standard error of {percent(of.precision, 1)} of OPS a run must last"
    if of.within_seconds is not None:
        least = "" if of.steady else " at least"
        yield f"{said}{least} {duration(of.within_seconds)} by how the rate varied within runs"
    else:
        yield f"{said}: not known from within runs: {of.no_within}"
    if of.between_seconds is not None:
        yield f"{said} {duration(of.between_seconds)} by how much the runs differ"
