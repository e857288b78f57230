"""Repeatability: variation of repeated runs, its causes, and the run length to reduce it.

docs/decisions/repeatability.md explains the limits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Literal

from aiperf_hpc.analysis.metric import Metric, NotMeasuredError, measured, measured_each
from aiperf_hpc.analysis.metrics import METRICS
from aiperf_hpc.analysis.metrics.score import error, operations_per_second, regulated
from aiperf_hpc.analysis.metrics.statistics import (
    CONFIDENCE,
    FEW,
    ConfidenceInterval,
    bootstrap_limits,
    coefficient_of_variation,
    normal_limits,
    runs_for,
    share_limits,
)
from aiperf_hpc.analysis.metrics.time_to_solution import reached_target
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.sections.repeated_runs import (
    Noise,
    Repeated,
    RunLength,
    Similarity,
    differences,
    noise_of,
    repetitions,
    run_length,
    similarity_of,
)
from aiperf_hpc.analysis.training_log import Entry, TrainingLog, any_of
from aiperf_hpc.formatting import duration, few, percent
from aiperf_hpc.results.table import NONE, Table, optional, reasons
from aiperf_hpc.trial import Value

LIMIT = 0.05
"""Maximum coefficient of variation of a repeatable AIPerf score."""
FEWEST_RUNS = 3
"""Minimum number of runs of a repeatable score, since two may agree by chance."""
MOST_RUNS_TO_DECIDE = 200
SCORES = (operations_per_second, regulated, error)
Decision = Literal["PASS", "FAIL", "too few runs"]


class Variation(Value):
    """Variation of one metric over repeated runs."""

    metric: str
    title: str
    unit: str
    values: tuple[float, ...]
    mean: float
    deviation: float
    variation: float
    """Coefficient of variation: standard deviation over mean."""
    interval: ConfidenceInterval | None
    """Bootstrap confidence interval of the coefficient of variation."""
    interval_unavailable_reason: str
    """Reason why there is no interval; empty if there is one."""
    too_few_runs: bool
    """Whether there are so few runs that the interval is too narrow."""
    runs_needed: int | None
    """Number of runs for the requested precision of the mean; None if more than a million."""


class TargetReached(Value):
    """Number of runs that reached the target."""

    reached: int
    runs: int
    fraction: float
    interval: ConfidenceInterval


class Verdict(Value):
    """Verdict on the repeatability of an AIPerf score."""

    metric: str
    limit: float
    variation: float
    interval: ConfidenceInterval
    """Interval whose ends the true coefficient of variation exceeds with 95 % and 5 %."""
    verdict: Decision
    runs_to_decide: int | None
    """Number of runs of this variation for a verdict; None if decided already, or never."""


class Repetition(Value):
    """The repeated runs of one configuration."""

    name: str
    benchmark: str
    runs: tuple[str, ...]
    excluded: tuple[str, ...]
    notes: tuple[str, ...]
    variations: tuple[Variation, ...]
    missing: dict[str, str]
    """Reason why each of the other metrics has no variation."""
    target: TargetReached | None
    verdicts: tuple[Verdict, ...]
    noise: Noise | None
    noise_unavailable_reason: str
    length: RunLength | None
    length_unavailable_reason: str
    similarity: Similarity | None
    """Similarity of predictions; None if fewer than two runs stored them."""
    similarity_unavailable_reason: str


class Repeatability(Value):
    """Repeatability of all repeated runs."""

    precision: float
    confidence: float
    repetitions: tuple[Repetition, ...]
    single: tuple[str, ...]
    """Entries with a single run and no equal configuration."""


def repeatability(
    entries: Sequence[Entry], options: Options, metrics: Sequence[Metric] = METRICS
) -> Repeatability:
    """Compare all repeated runs among ``entries`` by every metric.

    Raises:
        NotMeasuredError: there are no repeated runs, and no run records how its rate varied.
    """
    found = list(repetitions(entries))
    worth = [each for each in found if len(each.logs) > 1 or each.searches]
    if not worth:
        raise NotMeasuredError(
            "no repetitions: no entry has two training runs, and no two runs have the same settings"
        )
    return Repeatability(
        precision=options.precision,
        confidence=CONFIDENCE,
        repetitions=tuple(_repetition(each, metrics, options) for each in worth),
        single=tuple(each.name for each in found if each not in worth),
    )


def _repetition(of: Repeated, metrics: Sequence[Metric], options: Options) -> Repetition:
    wanted = {metric.name: metric for metric in (*metrics, *(SCORES if of.searches else ()))}
    device = any_of(entry.system.device for entry in of.entries)
    variations, missing = measured_each(
        wanted.values(),
        lambda metric: _variation(metric.counted_by(device), of.logs, options.precision),
    )
    verdicts: list[Verdict] = []
    noise: tuple[Noise | None, str] = (None, "")
    length: tuple[RunLength | None, str] = (None, "")
    if of.searches:
        scores = (each for each in variations if each.metric in {score.name for score in SCORES})
        verdicts = [verdict_on(each.metric, each.variation, len(each.values)) for each in scores]
        noise = measured(lambda: noise_of(of.logs))
        length = measured(lambda: run_length(of.logs, options.precision))
    similarity, why = measured(lambda: similarity_of(of.logs))
    return Repetition(
        name=of.name,
        benchmark=of.entries[0].benchmark,
        runs=tuple(log.source for log in of.logs),
        excluded=tuple(f"{source}: {why}" for source, why in of.excluded.items()),
        notes=tuple(differences(of.entries)),
        variations=tuple(variations),
        missing=missing,
        target=_target(of.logs, sum(entry.lost for entry in of.entries)),
        verdicts=tuple(verdicts),
        noise=noise[0],
        noise_unavailable_reason=noise[1],
        length=length[0],
        length_unavailable_reason=length[1],
        similarity=similarity,
        similarity_unavailable_reason=why,
    )


def _variation(metric: Metric, logs: Sequence[TrainingLog], precision: float) -> Variation:
    found, missing = measured_each(logs, metric.compute, attrgetter("source"))
    if missing and not found:
        raise NotMeasuredError(next(iter(missing.values())))
    values = tuple(found)
    variation = coefficient_of_variation(values)
    mean = math.fsum(values) / len(values)
    interval, why = measured(lambda: bootstrap_limits(values))
    runs_needed, _ = measured(lambda: runs_for(variation, precision))
    return Variation(
        metric=metric.name,
        title=metric.title,
        unit=metric.unit,
        values=values,
        mean=mean,
        deviation=variation * mean,
        variation=variation,
        interval=interval,
        interval_unavailable_reason=why,
        too_few_runs=len(values) < FEW,
        runs_needed=runs_needed,
    )


def _target(logs: Sequence[TrainingLog], lost: int) -> TargetReached | None:
    """Return the number of runs that reached the target, or None if no run records it.

    Runs with lost logs count as failed.
    """
    known, _ = measured_each(logs, reached_target, attrgetter("source"))
    if not known:
        return None
    reached, runs = sum(known), len(known) + lost
    return TargetReached(
        reached=reached,
        runs=runs,
        fraction=reached / runs,
        interval=share_limits(reached, runs),
    )


def verdict_on(metric: str, variation: float, runs: int) -> Verdict:
    """Return whether a number of runs with a coefficient of variation are repeatable.

    They are (or are not) if the coefficient is below (above) the limit with 95 % confidence.
    """
    verdict, interval = _decision(variation, runs)
    more = range(runs + 1, MOST_RUNS_TO_DECIDE + 1) if verdict == "too few runs" else ()
    enough = (n for n in more if _decision(variation, n)[0] != "too few runs")
    return Verdict(
        metric=metric,
        limit=LIMIT,
        variation=variation,
        interval=interval,
        verdict=verdict,
        runs_to_decide=next(enough, None),
    )


def _decision(variation: float, runs: int) -> tuple[Decision, ConfidenceInterval]:
    interval = normal_limits(variation, runs, 2.0 * CONFIDENCE - 1.0)
    if interval.low > LIMIT:
        return "FAIL", interval
    passes = interval.high is not None and interval.high <= LIMIT and runs >= FEWEST_RUNS
    return "PASS" if passes else "too few runs", interval


def tables(found: Repeatability) -> Iterator[Table]:
    """Yield the variation of metrics over repeated runs, the verdicts, and the noise sources."""
    for of in found.repetitions:
        yield _variations(of, found.precision)
        if of.verdicts:
            yield _verdicts_table(of)
        if of.noise is not None:
            yield _noise_table(of.name, of.noise)
    if found.single:
        yield Table(notes=(f"single runs without repetitions: {few(found.single)}",))


def _variations(of: Repetition, precision: float) -> Table:
    columns = (
        "metric", "mean", "deviation", "CoV", f"CoV, {CONFIDENCE:.0%} interval",
        f"runs for ±{percent(precision, 1)}",
    )  # fmt: skip
    runs = f"{len(of.runs)} run{'s' * (len(of.runs) != 1)}"
    title = f"{of.name}: {runs} of {of.benchmark}"
    missing = {
        "similarity of predictions": of.similarity_unavailable_reason,
        "noise of machine and search": of.noise_unavailable_reason,
        "length of a run": of.length_unavailable_reason,
    }
    table = Table(
        columns, tuple(map(_cells, of.variations)), title, tuple(_notes(of)), 
        tuple(f"{what}: {why}" for what, why in missing.items() if why),
        words=(0,),
    )  # fmt: skip
    known = [len(each.values) for each in of.variations]
    if all(count == len(of.runs) for count in known):
        return table
    rows = ((*row, f"{n} of {len(of.runs)}") for row, n in zip(table.rows, known, strict=True))
    return table._replace(columns=(*columns, "of runs"), rows=tuple(rows))


def _cells(of: Variation) -> tuple[str, ...]:
    return (
        f"{of.title}, {of.unit}" if of.unit else of.title,
        f"{of.mean:.6g}",
        f"{of.deviation:.3g}",
        percent(of.variation),
        NONE if of.interval is None else _limits(of.interval),
        "over a million" if of.runs_needed is None else f"{of.runs_needed:,}",
    )


def _limits(of: ConfidenceInterval) -> str:
    return f"{percent(of.low)} to {'unbounded' if of.high is None else percent(of.high)}"


def _notes(of: Repetition) -> Iterator[str]:
    yield from of.notes
    yield from (f"left out: {left}" for left in of.excluded)
    methods = dict.fromkeys(v.interval.method for v in of.variations if v.interval)
    yield from (f"intervals: {method}" for method in methods)
    if any(v.too_few_runs and v.interval for v in of.variations):
        yield f"bootstrapped intervals of fewer than {FEW} runs are too narrow"
    yield from reasons(
        {v.title: why for v in of.variations if (why := v.interval_unavailable_reason)}
    )
    if of.target is not None:
        reached, share = of.target, of.target.interval
        yield (
            f"target reached: {reached.reached} of {reached.runs}, {percent(reached.fraction, 1)} "
            f"[{_limits(share)}, {share.method}]"
        )
    if of.similarity is not None:
        alike = of.similarity
        yield (
            f"Jaccard similarity of predictions: {alike.mean:.4f} ({alike.min:.4f} to "
            f"{alike.max:.4f}), {alike.pairs} pairs of {len(alike.runs)} networks"
        )
    yield from _length(of.length)


def _length(of: RunLength | None) -> Iterator[str]:
    if of is None:
        return
    needed = f"for a standard error of {percent(of.precision, 1)} of OPS a run must last"
    if of.within_seconds is not None:
        least = "" if of.steady else " at least"
        enough = duration(of.within_seconds)
        yield f"{needed}{least} {enough} from the variation of the rate within runs"
    else:
        yield f"{needed}: not known from within runs: {of.within_unavailable_reason}"
    if of.between_seconds is not None:
        yield f"{needed} {duration(of.between_seconds)} from the differences between runs"


def _verdicts_table(of: Repetition) -> Table:
    columns = (
        "score", "verdict", "CoV", "interval, each end at 95 %", "limit", "runs that would decide",
    )  # fmt: skip
    rows = tuple(
        (
            v.metric, v.verdict, percent(v.variation), _limits(v.interval), percent(v.limit, 1),
            optional("{:,}".format, v.runs_to_decide),
        )
        for v in of.verdicts
    )  # fmt: skip
    methods = dict.fromkeys(v.interval.method for v in of.verdicts)
    return Table(
        columns, rows, f"{of.name}: whether scores are repeatable",
        notes=tuple(f"intervals: {method}" for method in methods), words=(0,),
    )  # fmt: skip


def _noise_table(name: str, noise: Noise) -> Table:
    rows = tuple((f.name, percent(f.fraction, 1), percent(f.deviation)) for f in noise.factors)
    cause = "sources of the variance of ln(OPS), with the machine by"
    title = f"{name}: {cause} {noise.machine_rate_source}"
    return Table(("factor", "fraction", "deviation alone"), rows, title, words=(0,))
