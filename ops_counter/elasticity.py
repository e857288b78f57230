"""What a run achieved on each number of nodes that it had, where nodes came and went.

The score stays what it is, operations over elapsed time. Beside it stand the operations of a
node-hour, and the weak-scaling efficiency within the run: OPS of a node on so many nodes over
those on the fewest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from aiperf_hpc.ops_counter.score import OperationsOf, score_series
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.history.presence import Step, presences, steps

LEAST_SHARE: Final = 0.01
"""The share of the elapsed time below which a number of nodes was a moment between two others, and
says nothing of OPS: records of executed samples are seconds apart."""


@dataclass(frozen=True, slots=True)
class AtNodes:
    """All the time in which a run had one number of nodes."""

    nodes: int
    seconds: float
    operations: int
    efficiency: float
    """Its OPS of a node over those on the fewest nodes."""

    @property
    def ops(self) -> float:
        """Operations a second of that time."""
        return self.operations / self.seconds


@dataclass(frozen=True, slots=True)
class Elasticity:
    """A run whose nodes came and went."""

    steps: tuple[Step, ...]
    """The number of replicas from each time on."""
    node_hours: float
    """The hours of all nodes, each from its replica's first record to its last."""
    operations: int
    points: tuple[AtNodes, ...]
    """What was done on each number of nodes, the fewest first, but for moments."""

    @property
    def operations_per_node_hour(self) -> float:
        return self.operations / self.node_hours if self.node_hours else 0.0


def elasticity(
    history: RunHistory, counts: OperationsOf, until: float, nodes_each: int
) -> Elasticity | None:
    """Return what a run did on each number of nodes up to ``until``, UTC seconds.

    Args:
        history: the run's records.
        counts: the operations of a sample of each trial.
        until: the run's end, or now.
        nodes_each: how many nodes a replica spans.

    Returns:
        None where no other nodes were asked for than the run began with.
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
    """Return the seconds and the operations of each number of nodes."""
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
