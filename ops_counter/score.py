"""The score: operations of all executed samples over elapsed time, and its regulated form.

OPS(t) = operations credited until t / (t - start), over all replicas (Ren et al. 2021).
Regulated(t) = -ln(error(t)) * OPS(t), with the error of the best complete evaluation until t.
Valid FLOPS of HPC AI500 weight a rate of operations by the quality reached
(Jiang et al. 2020, arXiv:2007.00279; docs/decisions/valid_flops.md).
Contributions to the operations are by kind of node and by number of nodes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, Protocol

from aiperf_hpc.errors import RunDirectoryError
from aiperf_hpc.graph import Graph
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.ops_counter.layers import Operations
from aiperf_hpc.run.history import Evaluation, ReplicaHistory, RunHistory
from aiperf_hpc.run.history.presence import Step, presences, steps
from aiperf_hpc.run.records import TrialStarted
from aiperf_hpc.system.summary import kind_of
from aiperf_hpc.trial import TimePhase

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


UNTOLD: Final = "not reported"
"""Kind of a replica that recorded no description of its node."""
BUSY: Final = (TimePhase.TRAIN, TimePhase.EVALUATE)
LEAST_SHARE: Final = 0.01
"""Fraction of the elapsed time below which a number of nodes is ignored as a transition: records of
executed samples are seconds apart, so its OPS would be meaningless."""


@dataclass(frozen=True, slots=True)
class KindWork:
    """Contribution of the replicas on one kind of node."""

    kind: str
    replicas: int
    trials: int
    """Number of trials that they started."""
    operations: int
    node_hours: float
    """Node hours, each node from its replica's first record to its last."""
    busy_fraction: float
    """Fraction of these hours spent on training and evaluation."""

    @property
    def operations_per_node_hour(self) -> float:
        return self.operations / self.node_hours if self.node_hours else 0.0


def kinds_of(replicas: Iterable[ReplicaHistory]) -> dict[str, str]:
    """Return the kind of node of each replica; empty if all recorded kinds are equal.

    A replica that was restarted on another kind of node has a kind that names both.
    """
    found = {replica.id: _kind(replica) for replica in replicas}
    return found if len(set(found.values()) - {UNTOLD}) > 1 else {}


def work_by_kind(
    history: RunHistory,
    kinds: Mapping[str, str],
    counts: OperationsOf,
    until: float,
    nodes_each: int,
) -> list[KindWork]:
    """Return the contribution of each kind of node up to ``until``, most operations first.

    Args:
        history: history of the run.
        kinds: kind of node of each replica.
        counts: operations per sample of each trial.
        until: end of the run, or now, in UTC seconds.
        nodes_each: number of nodes of a replica.
    """
    members: dict[str, list[ReplicaHistory]] = {}
    for name, kind in kinds.items():
        members.setdefault(kind, []).append(history.replicas[name])
    operations = _operations(history, counts, until)
    hours: defaultdict[str, float] = defaultdict(float)
    for presence in presences(history, until):
        hours[presence.replica] += (presence.end - presence.begin) / 3600.0
    found = []
    for kind, replicas in members.items():
        there = sum(hours[each.id] for each in replicas)
        busy = sum(each.seconds.get(phase, 0.0) for each in replicas for phase in BUSY) / 3600.0
        work = KindWork(
            kind=kind,
            replicas=len(replicas),
            trials=sum(len(each.trials) for each in replicas),
            operations=sum(operations[each.id] for each in replicas),
            node_hours=there * nodes_each,
            busy_fraction=min(1.0, busy / there) if there else 0.0,
        )
        found.append(work)
    return sorted(found, key=lambda work: (-work.operations, work.kind))


def _operations(history: RunHistory, counts: OperationsOf, until: float) -> Counter[str]:
    """Return the operations credited to each replica."""
    late = history.executions.after(until)
    found: Counter[str] = Counter()
    for name in history.executions.trials:
        trial = history.trials[name]
        (training, validation), after = counts(trial.started), late.get(name, (0, 0))
        found[trial.replica] += (trial.train_samples - after[0]) * training
        found[trial.replica] += (trial.validation_samples - after[1]) * validation
    return found


def _kind(replica: ReplicaHistory) -> str:
    """Return the kinds of node on which a replica's attempts ran."""
    kinds = (
        " and ".join(sorted(set(map(kind_of, nodes)))) for _, nodes in sorted(replica.nodes.items())
    )
    return ", then ".join(dict.fromkeys(kinds)) or UNTOLD


@dataclass(frozen=True, slots=True)
class AtNodes:
    """The part of a run with one number of nodes."""

    nodes: int
    seconds: float
    operations: int
    efficiency: float
    """OPS per node relative to the fewest nodes."""

    @property
    def ops(self) -> float:
        """Operations per second in that time."""
        return self.operations / self.seconds


@dataclass(frozen=True, slots=True)
class Elasticity:
    """Contributions of a run whose number of nodes changed."""

    steps: tuple[Step, ...]
    """Number of replicas from each time on."""
    node_hours: float
    """Node hours, each node from its replica's first record to its last."""
    operations: int
    points: tuple[AtNodes, ...]
    """Contribution of each number of nodes, fewest first, without transitions."""

    @property
    def operations_per_node_hour(self) -> float:
        return self.operations / self.node_hours if self.node_hours else 0.0


def elasticity(
    history: RunHistory, counts: OperationsOf, until: float, nodes_each: int
) -> Elasticity | None:
    """Return the contribution of each number of nodes up to ``until``.

    Args:
        history: history of the run.
        counts: operations per sample of each trial.
        until: end of the run, or now, in UTC seconds.
        nodes_each: number of nodes of a replica.

    Returns:
        None if the requested number of nodes never changed.
    """
    start = history.start_utc
    if not history.scalings or start is None or until <= start:
        return None
    found = presences(history, until)
    course = steps(found)
    edges = [start, *(step.utc for step in course if start < step.utc < until), until]
    operations = [point.operations for point in score_series(history, counts, edges)]
    done = [after - before for before, after in pairwise(operations)]
    return Elasticity(
        steps=tuple(course),
        node_hours=sum(each.end - each.begin for each in found) * nodes_each / 3600.0,
        operations=operations[-1],
        points=_points(_at_each(course, edges, done, nodes_each), LEAST_SHARE * (until - start)),
    )


def _at_each(
    course: Sequence[Step], edges: Sequence[float], done: Sequence[int], nodes_each: int
) -> dict[int, tuple[float, int]]:
    """Return seconds and operations of each number of nodes."""
    found: dict[int, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    replicas = dict(course)
    now = 0
    for (begin, end), operations in zip(pairwise(edges), done, strict=True):
        now = replicas.get(begin, now)
        seconds, before = found[now * nodes_each]
        found[now * nodes_each] = seconds + end - begin, before + operations
    return found


def _points(found: dict[int, tuple[float, int]], least: float) -> tuple[AtNodes, ...]:
    kept = [(n, *each) for n, each in sorted(found.items()) if n and each[0] >= least]
    rates = [operations / seconds / nodes for nodes, seconds, operations in kept]
    unit = next((rate for rate in rates if rate > 0.0), 0.0)
    return tuple(
        AtNodes(*each, rate / unit if unit else 0.0) for each, rate in zip(kept, rates, strict=True)
    )
