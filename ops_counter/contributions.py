"""Contributions to a run's operations by kind of node and by number of nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from aiperf_hpc.ops_counter.score import OperationsOf, score_series
from aiperf_hpc.run.history import ReplicaHistory, RunHistory
from aiperf_hpc.run.history.presence import Step, presences, steps
from aiperf_hpc.system.summary import kind_of
from aiperf_hpc.trial import TimePhase

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
    for life in presences(history, until):
        hours[life.replica] += (life.end - life.begin) / 3600.0
    found = [_work(kind, own, operations, hours, nodes_each) for kind, own in members.items()]
    return sorted(found, key=lambda work: (-work.operations, work.kind))


def _work(
    kind: str,
    replicas: Sequence[ReplicaHistory],
    operations: Mapping[str, int],
    hours: Mapping[str, float],
    nodes_each: int,
) -> KindWork:
    there = sum(hours[each.id] for each in replicas)
    busy = sum(each.seconds.get(phase, 0.0) for each in replicas for phase in BUSY) / 3600.0
    return KindWork(
        kind=kind,
        replicas=len(replicas),
        trials=sum(len(each.trials) for each in replicas),
        operations=sum(operations[each.id] for each in replicas),
        node_hours=there * nodes_each,
        busy_fraction=min(1.0, busy / there) if there else 0.0,
    )


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
    lives = (
        " and ".join(sorted(set(map(kind_of, nodes)))) for _, nodes in sorted(replica.nodes.items())
    )
    return ", then ".join(dict.fromkeys(lives)) or UNTOLD


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
    lives = presences(history, until)
    course = steps(lives)
    edges = [start, *(step.utc for step in course if start < step.utc < until), until]
    operations = [point.operations for point in score_series(history, counts, edges)]
    done = [after - before for before, after in pairwise(operations)]
    return Elasticity(
        steps=tuple(course),
        node_hours=sum(life.end - life.begin for life in lives) * nodes_each / 3600.0,
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
