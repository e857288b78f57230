"""The score: operations of all executed samples over elapsed time, and its regulated form.

OPS(t) = operations credited until t / (t - start), over all replicas (Ren et al. 2021).
Regulated(t) = -ln(error(t)) * OPS(t), with the error of the best complete evaluation until t.
Valid FLOPS of HPC AI500 weight a rate of operations by the quality reached
(Jiang et al. 2020, arXiv:2007.00279; docs/decisions/valid_flops.md).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from aiperf_hpc.errors import RunDirectoryError
from aiperf_hpc.graph import Graph
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.ops_counter.layers import Operations
from aiperf_hpc.run.history import Evaluation, RunHistory
from aiperf_hpc.run.records import TrialStarted
from aiperf_hpc.trial import Value

MOST_POINTS = 100_000
"""Maximum number of points of the score over time. The shortest interval gives 48,000 per day, the
default 87,600 per year."""


class ScoreStatus(Value):
    """A score at one time. Units: operations, operations per second, seconds."""

    elapsed_seconds: float
    """Seconds since the run's start."""
    operations: int
    """Credited analytical operations."""
    ops: float
    """Score: credited operations per second."""
    error: float | None
    """Fraction of validation samples with a wrong prediction; null if there is none."""
    regulated_error: float | None
    """Error used for ``regulated``, which is at least one validation sample."""
    regulated: float | None
    """Regulated score: minus the logarithm of the error, times the score."""

    @classmethod
    def of(
        cls, elapsed: float, operations: int, error: float | None, regulated_error: float | None
    ) -> ScoreStatus:
        """Return the score of operations and of the error of the best complete evaluation.

        The error is None before the first evaluation, and if the run's metric is not a fraction of
        the samples; the regulated one is at least one sample (docs/decisions/score.md).
        """
        ops = operations / elapsed if elapsed > 0 else 0.0
        regulated = None
        if regulated_error is not None:
            regulated = (0.0 - math.log(regulated_error)) * ops  # 0.0, not -0.0, at error 1
        return cls(
            elapsed_seconds=elapsed,
            operations=operations,
            ops=ops,
            error=error,
            regulated_error=regulated_error,
            regulated=regulated,
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """Total counts of a graph, without its layers."""

    forward: int
    """Operations of a validation sample."""
    backward: int
    training: int
    """Operations of a training sample: forward and backward."""
    by_kind: Mapping[str, Operations]


def totals(graph: Graph) -> Totals:
    """Return the total counts of a graph. Raises CountError."""
    counted = count(graph)
    return Totals(counted.forward, counted.backward, counted.training, counted.by_kind())


def end_of(history: RunHistory) -> float:
    """Return the end of the scored time in UTC seconds: the run's end, or its last record."""
    return history.last_utc if history.end_utc is None else history.end_utc


def credited(started: TrialStarted, train: int, validation: int) -> int:
    """Return the operations of samples, by the operations per sample that their trial recorded.

    Report and verify count its graph again.
    """
    return train * started.train_operations + validation * started.validation_operations


def score_at(history: RunHistory, utc: float) -> ScoreStatus:
    """Return the score at ``utc``; (0, 0) if the run has not started."""
    if history.executions.last_utc > utc:
        return score_series(history, [utc])[0]
    trials = map(history.trials.__getitem__, history.executions.trials)
    operations = sum(credited(t.started, t.train_samples, t.validation_samples) for t in trials)
    return _point(history, utc, operations, history.best_until(utc))


def score_series(history: RunHistory, times: list[float]) -> list[ScoreStatus]:
    """Return the score at each of ``times``, UTC seconds in ascending order."""
    operations = accumulate(_credits(history, times))
    points = zip(times, operations, _bests(history, times), strict=True)
    return [_point(history, utc, done, best) for utc, done, best in points]


def _credits(history: RunHistory, times: list[float]) -> list[int]:
    """Return the operations credited between each time and its predecessor."""
    found = [0] * (len(times) + 1)
    edges = [-math.inf, *times, math.inf]
    started = (history.trials[name].started for name in history.executions.trials)
    samples = [(each.train_operations, each.validation_operations) for each in started]
    # Records are in time order, so most are in the interval of the previous one.
    at, after, until = 0, math.inf, -math.inf
    for utc, place, train, validation in history.executions.rows():
        if not after < utc <= until:
            at = bisect_left(times, utc)
            after, until = edges[at], edges[at + 1]
        sample = samples[place]
        found[at] += train * sample[0] + validation * sample[1]
    return found[:-1]


def _bests(history: RunHistory, times: list[float]) -> list[Evaluation | None]:
    """Return the best complete evaluation until each time."""
    found: list[Evaluation | None] = [None] * len(times)
    last = times[-1] if times else -math.inf
    for trial in history.trials.values():
        for evaluation in trial.evaluations:
            if evaluation.utc <= last:
                place = bisect_left(times, evaluation.utc)
                if evaluation.beats(found[place]):
                    found[place] = evaluation
    return list(accumulate(found, _better))


def _better(one: Evaluation | None, other: Evaluation | None) -> Evaluation | None:
    return other if other is not None and other.beats(one) else one


def _point(
    history: RunHistory, utc: float, operations: int, best: Evaluation | None
) -> ScoreStatus:
    start = history.start_utc
    return ScoreStatus.of(
        0.0 if start is None else max(0.0, utc - start),
        operations,
        None if best is None else best.error,
        None if best is None else best.regulated_error,
    )


def score_times(history: RunHistory, interval_hours: float) -> list[float]:
    """Return every multiple of the interval since the start, and the end, UTC seconds.

    Raises:
        RunDirectoryError: they are more than any run has, because a time in the records is wrong.
    """
    if history.start_utc is None:
        return []
    start, end, step = history.start_utc, end_of(history), interval_hours * 3600.0
    whole = int((end - start) / step)
    if whole > MOST_POINTS:
        raise RunDirectoryError(
            f"the records of {history.paths.root} cover {(end - start) / 3600.0:.6g} hours, for "
            f"each {interval_hours:g} of which the score would be stated: a time in them is wrong, "
            "or the interval"
        )
    times = [start + step * (i + 1) for i in range(whole)]
    if times and end - times[-1] < 1e-3:
        times.pop()  # Equal to the end except for rounding.
    return [*times, end]


CURVE_POINTS = 720
"""Number of points of a plotted score."""


class ScoreSeries:
    """Score of a run over time, recomputed only if there are new records."""

    def __init__(self, history: RunHistory, interval_hours: float) -> None:
        self._history = history
        self._interval = interval_hours
        self._computed: tuple[int, list[ScoreStatus], list[ScoreStatus]] | None = None
        """Both series, with the number of records that they cover."""

    def official(self) -> list[ScoreStatus]:
        """Return the score at every interval and at the end (or the last record so far)."""
        return list(self._both()[1])

    def curve(self) -> list[ScoreStatus]:
        """Return the score at every ``CURVE_POINTS``-th part of the time so far."""
        return list(self._both()[2])

    def points(self, interval_hours: float) -> list[ScoreStatus]:
        """Return the score at every multiple of an interval."""
        history = self._history
        return score_series(history, score_times(history, interval_hours))

    def _both(self) -> tuple[int, list[ScoreStatus], list[ScoreStatus]]:
        """Return the score points and the curve in one pass over all records."""
        history = self._history
        if self._computed is None or self._computed[0] != history.record_count:
            official = score_times(history, self._interval)
            elapsed = 0.0 if history.start_utc is None else end_of(history) - history.start_utc
            fine = score_times(history, elapsed / CURVE_POINTS / 3600.0) if elapsed >= 1.0 else []
            times = sorted({*official, *fine})
            points = dict(zip(times, score_series(history, times), strict=True))
            series, curve = ([points[utc] for utc in each] for each in (official, fine))
            self._computed = history.record_count, series, curve
        return self._computed


class Weight(NamedTuple):
    """Quality weighting of a benchmark of HPC AI500."""

    target: float
    """Target quality of the benchmark."""
    exponent: int
    """Exponent n: 5 for image classification, 10 for extreme weather analytics."""


def quality_ratio(achieved: float, target: float, *, higher_is_better: bool) -> float | None:
    """Return the ratio of the achieved to the target quality; above 1 is better.

    The paper defines achieved / target for accuracy and average precision. It does not cover
    metrics for which lower is better (an error, a loss); for those the ratio is target / achieved,
    so twice the target error is half the quality. None if either is not positive.
    """
    better, worse = (achieved, target) if higher_is_better else (target, achieved)
    return better / worse if target > 0.0 and worse > 0.0 and better >= 0.0 else None


def weighted(rate: float, ratio: float, exponent: int) -> float | None:
    """Return VFLOPS = FLOPS · ratio^n in operations per second; None if that is not finite.

    As published, a quality beyond the target increases the result: the ratio is not capped at 1.

    Args:
        rate: FLOPS, operations per second.
        ratio: achieved over target quality.
        exponent: n.
    """
    try:
        found = rate * float(ratio) ** exponent
    except OverflowError:
        return None
    lost = math.isinf(found) or (found == 0.0 and rate * ratio > 0.0)
    return None if lost else found
