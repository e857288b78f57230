"""The score: operations of all executed samples over elapsed time, and its regulated form.

OPS(t) = operations credited until t / (t - start), over all replicas (Ren et al. 2021).
Regulated(t) = -ln(error(t)) * OPS(t), with the error of the best complete evaluation until t.
Valid FLOPS of HPC AI500 weight a rate of operations by the quality reached
(Jiang et al. 2020, arXiv:2007.00279; docs/decisions/valid_flops.md).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol

from aiperf_hpc.errors import RunDirectoryError
from aiperf_hpc.graph import Graph
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.ops_counter.layers import Operations
from aiperf_hpc.run.history import Evaluation, RunHistory
from aiperf_hpc.run.records import TrialStarted

OperationsOf = Callable[[TrialStarted], tuple[int, int]]
"""Returns the operations of one training sample and one validation sample of a trial."""
MOST_POINTS = 100_000
"""Maximum number of points of the score over time. The shortest interval gives 48,000 per day, the
default 87,600 per year."""


@dataclass(frozen=True, slots=True)
class ScorePoint:
    """The score at one time."""

    elapsed: float
    """Seconds since the run's start."""
    operations: int
    """Operations credited so far, over all replicas."""
    error: float | None
    """Error of the best complete evaluation so far: 1 - accuracy. None before the first evaluation,
    and if the run's metric is not a fraction of the samples."""
    regulated_error: float | None
    """``error``, but at least one sample of the validation set (docs/decisions/score.md)."""

    @property
    def ops(self) -> float:
        """Operations per second since the run's start."""
        return self.operations / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def regulated(self) -> float | None:
        """-ln(error) * OPS."""
        if self.regulated_error is None:
            return None
        return (0.0 - math.log(self.regulated_error)) * self.ops  # 0.0, not -0.0, at error 1


@dataclass(frozen=True, slots=True)
class Totals:
    """Total counts of a graph, without its layers."""

    forward: int
    """Operations of a validation sample."""
    backward: int
    training: int
    """Operations of a training sample: forward and backward."""
    by_kind: Mapping[str, Operations]


class Graphs(Protocol):
    """Reads the graphs of a run."""

    def load(self, graph_hash: str) -> Graph:
        """Return a graph. Raises GraphError."""
        ...


class Counts:
    """The operation counts of a run's graphs, counted once each."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs
        self._known: dict[str, Totals] = {}

    def __getitem__(self, graph_hash: str) -> Totals:
        """Return the count of a graph. Raises GraphError or CountError."""
        known = self._known.get(graph_hash)
        if known is None:
            counted = count(self._graphs.load(graph_hash))
            known = self._known[graph_hash] = Totals(
                counted.forward, counted.backward, counted.training, counted.by_kind()
            )
        return known

    def __call__(self, started: TrialStarted) -> tuple[int, int]:
        """Return the operations of one training sample and one validation sample, by its graph."""
        counted = self[started.graph]
        return counted.training, counted.forward


def recorded(started: TrialStarted) -> tuple[int, int]:
    """Return the operations that a trial recorded; report and verify count the graph again."""
    return started.train_operations, started.validation_operations


def end_of(history: RunHistory) -> float:
    """Return the end of the scored time in UTC seconds: the run's end, or its last record."""
    return history.last_utc if history.end_utc is None else history.end_utc


def score_at(history: RunHistory, counts: OperationsOf, utc: float) -> ScorePoint:
    """Return the score at ``utc``; (0, 0) if the run has not started.

    Raises:
        GraphError: ``counts`` needs a graph that is missing or does not match its hash.
    """
    if history.executions.last_utc > utc:
        return score_series(history, counts, [utc])[0]
    operations = 0
    for trial in map(history.trials.__getitem__, history.executions.trials):
        training, validation = counts(trial.started)
        operations += trial.train_samples * training + trial.validation_samples * validation
    return _point(history, utc, operations, history.best_until(utc))


def score_series(history: RunHistory, counts: OperationsOf, times: list[float]) -> list[ScorePoint]:
    """Return the score at each of ``times``, UTC seconds in ascending order.

    Raises:
        GraphError: ``counts`` needs a graph that is missing or does not match its hash.
    """
    operations = accumulate(_credits(history, counts, times))
    points = zip(times, operations, _bests(history, times), strict=True)
    return [_point(history, utc, done, best) for utc, done, best in points]


def _credits(history: RunHistory, counts: OperationsOf, times: list[float]) -> list[int]:
    """Return the operations credited between each time and its predecessor."""
    found = [0] * (len(times) + 1)
    edges = [-math.inf, *times, math.inf]
    samples = [counts(history.trials[name].started) for name in history.executions.trials]
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


def _point(history: RunHistory, utc: float, operations: int, best: Evaluation | None) -> ScorePoint:
    start = history.start_utc
    return ScorePoint(
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
