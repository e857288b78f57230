"""How well repeated runs agree, why they do not, and what would make them agree.

docs/decisions/repeatability.md has the limits and says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar

from aiperf_hpc.primary.analyze.measured import Measure, NotMeasuredError
from aiperf_hpc.primary.analyze.measures.repeatability import (
    FEW,
    bootstrap_limits,
    coefficient_of_variation,
    normal_limits,
    runs_for,
    share_limits,
)
from aiperf_hpc.primary.analyze.measures.score import ERROR, OPS, REGULATED
from aiperf_hpc.primary.analyze.measures.time_to_solution import reached_target
from aiperf_hpc.primary.analyze.options import Options
from aiperf_hpc.primary.analyze.sections.noise import Noise, RunLength, noise_of, run_length
from aiperf_hpc.primary.analyze.sections.repeated_runs import Repeated, repetitions
from aiperf_hpc.primary.analyze.sections.similarity import Similarity, similarity_of
from aiperf_hpc.primary.analyze.training_log import Entry, TrainingLog
from aiperf_hpc.trial import Value

T = TypeVar("T")
CONFIDENCE = 0.95
LIMIT = 0.05
"""The coefficient of variation up to which our own scores are called repeatable."""
FEWEST_RUNS = 3
"""Fewer never pass: two may agree by chance."""
MOST_RUNS_TO_DECIDE = 200
SCORES = (OPS, REGULATED, ERROR)


class Interval(Value):
    """A confidence interval. An end is None where it has none."""

    low: float
    high: float | None
    method: str


class Variation(Value):
    """How much one measure varies over repeated runs."""

    measure: str
    title: str
    unit: str
    values: tuple[float, ...]
    mean: float
    deviation: float
    variation: float
    """Coefficient of variation: deviation over mean."""
    interval: Interval | None
    """Of the coefficient of variation, by the bootstrap."""
    no_interval: str
    """Why there is none; empty where there is."""
    few: bool
    """Whether the runs are so few that the interval is too narrow."""
    runs_needed: int | None
    """For the mean to be known to the wanted precision; None where a million are too few."""


class TargetReached(Value):
    """In how many of the runs the target was reached."""

    reached: int
    runs: int
    share: float
    interval: Interval


class Verdict(Value):
    """Whether one of our scores is repeatable."""

    measure: str
    limit: float
    variation: float
    interval: Interval
    """In which the true coefficient of variation lies above each end with 95 % and 5 %."""
    verdict: Literal["PASS", "FAIL", "too few runs"]
    runs_to_decide: int | None
    """How many runs of such a variation would be enough; None where that is decided, or never."""


class Repetition(Value):
    """The repeated runs of one configuration."""

    name: str
    benchmark: str
    runs: tuple[str, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]
    variations: tuple[Variation, ...]
    missing: dict[str, str]
    """Why other measures have no variation."""
    target: TargetReached | None
    verdicts: tuple[Verdict, ...]
    noise: Noise | None
    no_noise: str
    length: RunLength | None
    no_length: str
    similarity: Similarity | None
    """Of predictions; None where fewer than two runs kept them."""
    no_similarity: str


class Repeatability(Value):
    """What can be said of runs that were repeated."""

    precision: float
    confidence: float
    repetitions: tuple[Repetition, ...]
    single: tuple[str, ...]
    """The entries that have one run alone, and no other like it."""


def repeatability(
    measures: Sequence[Measure], entries: Sequence[Entry], options: Options
) -> Repeatability:
    """Compare all repeated runs among ``entries``, by every one of ``measures``.

    Raises:
        NotMeasuredError: nothing was repeated, and no run says how its rate varied.
    """
    found = list(repetitions(entries))
    worth = [each for each in found if len(each.logs) > 1 or each.searches]
    if not worth:
        raise NotMeasuredError(
            "nothing was repeated: no entry has two trainings, and no two runs are alike"
        )
    return Repeatability(
        precision=options.precision,
        confidence=CONFIDENCE,
        repetitions=tuple(_repetition(each, measures, options) for each in worth),
        single=tuple(each.name for each in found if each not in worth),
    )


def _repetition(of: Repeated, measures: Sequence[Measure], options: Options) -> Repetition:
    wanted = {measure.name: measure for measure in (*measures, *(SCORES if of.searches else ()))}
    variations: list[Variation] = []
    missing: dict[str, str] = {}
    for measure in wanted.values():
        try:
            variations.append(_variation(measure, of.logs, options.precision))
        except NotMeasuredError as error:
            missing[measure.name] = str(error)
    noise, no_noise = _or_why(lambda: noise_of(of.logs), of.searches)
    length, no_length = _or_why(lambda: run_length(of.logs, options.precision), of.searches)
    similarity, no_similarity = _or_why(lambda: similarity_of(of.logs), True)
    return Repetition(
        name=of.name,
        benchmark=of.benchmark,
        runs=tuple(log.source for log in of.logs),
        left_out=of.left_out,
        notes=of.notes,
        variations=tuple(variations),
        missing=missing,
        target=_target(of.logs, of.lost),
        verdicts=tuple(_verdicts(variations)) if of.searches else (),
        noise=noise,
        no_noise=no_noise,
        length=length,
        no_length=no_length,
        similarity=similarity,
        no_similarity=no_similarity,
    )


def _or_why(make: Callable[[], T], wanted: bool) -> tuple[T | None, str]:
    """Return what is made, or why it cannot be; neither where it is not wanted."""
    try:
        return (make(), "") if wanted else (None, "")
    except NotMeasuredError as error:
        return None, str(error)


def _variation(measure: Measure, logs: Sequence[TrainingLog], precision: float) -> Variation:
    values = tuple(_values(measure, logs))
    variation = coefficient_of_variation(values)
    mean = math.fsum(values) / len(values)
    interval, why = None, ""
    try:
        limits = bootstrap_limits(values, CONFIDENCE)
        interval = Interval(low=limits.low, high=limits.high, method=limits.method)
    except NotMeasuredError as error:
        why = str(error)
    return Variation(
        measure=measure.name,
        title=measure.title,
        unit=measure.unit,
        values=values,
        mean=mean,
        deviation=variation * mean,
        variation=variation,
        interval=interval,
        no_interval=why,
        few=len(values) < FEW,
        runs_needed=_runs_needed(variation, precision),
    )


def _values(measure: Measure, logs: Sequence[TrainingLog]) -> Iterator[float]:
    """Yield a measure of each run that has it; raise why not, where none has."""
    reason = None
    known = 0
    for log in logs:
        try:
            value = measure.of(log)
        except NotMeasuredError as error:
            reason = reason or error
            continue
        known += 1
        yield value
    if reason is not None and not known:
        raise reason


def _runs_needed(variation: float, precision: float) -> int | None:
    try:
        return runs_for(variation, precision, CONFIDENCE)
    except NotMeasuredError:
        return None


def _target(logs: Sequence[TrainingLog], lost: int) -> TargetReached | None:
    """Return how many of the runs that say it reached the target; None where none says it.

    Runs whose logs are lost did not.
    """
    said = [success for log in logs if (success := _reached(log)) is not None]
    if not said:
        return None
    reached, runs = sum(said), len(said) + lost
    limits = share_limits(reached, runs, CONFIDENCE)
    return TargetReached(
        reached=reached,
        runs=runs,
        share=reached / runs,
        interval=Interval(low=limits.low, high=limits.high, method=limits.method),
    )


def _reached(log: TrainingLog) -> bool | None:
    """Return whether a run reached its target; None where neither it nor its qualities say so."""
    try:
        return reached_target(log)
    except NotMeasuredError:
        return None


def _verdicts(variations: Sequence[Variation]) -> Iterator[Verdict]:
    names = {score.name for score in SCORES}
    for each in variations:
        if each.measure in names:
            yield verdict_on(each.measure, each.variation, len(each.values))


def verdict_on(measure: str, variation: float, runs: int) -> Verdict:
    """Return whether so many runs of such a coefficient of variation are repeatable.

    They are (or are not) where the coefficient lies below (above) the limit with 95 % confidence.
    """
    low, high, method = normal_limits(variation, runs, 2.0 * CONFIDENCE - 1.0)
    verdict = _verdict(variation, runs)
    undecided = verdict == "too few runs"
    return Verdict(
        measure=measure,
        limit=LIMIT,
        variation=variation,
        interval=Interval(low=low, high=high if math.isfinite(high) else None, method=method),
        verdict=verdict,
        runs_to_decide=_runs_to_decide(variation, runs) if undecided else None,
    )


def _verdict(variation: float, runs: int) -> Literal["PASS", "FAIL", "too few runs"]:
    low, high, _ = normal_limits(variation, runs, 2.0 * CONFIDENCE - 1.0)
    if low > LIMIT:
        return "FAIL"
    return "PASS" if high <= LIMIT and runs >= FEWEST_RUNS else "too few runs"


def _runs_to_decide(variation: float, runs: int) -> int | None:
    more = range(runs + 1, MOST_RUNS_TO_DECIDE + 1)
    return next((n for n in more if _verdict(variation, n) != "too few runs"), None)
