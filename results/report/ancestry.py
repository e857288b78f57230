"""Which architecture grew from which, laid out one a row with lines between them.

Each row has a lane. The child with the most descendants continues its parent's lane and comes
last; every other child opens the lane to the right. A lane is thus opened only beside a subtree
at least as large, and n architectures need at most log2(n) + 1 lanes, however deep they grew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from aiperf_hpc.objective import Measure
from aiperf_hpc.results.report.parts import TrialReport


@dataclass(slots=True)
class Architecture:
    """A graph, the trials that trained it, and the architectures that grew from it."""

    graph: str
    parent: str | None
    """The graph that it grew from."""
    grown_by: str
    trials: list[TrialReport] = field(default_factory=list)
    children: list[str] = field(default_factory=list)

    @property
    def grown_from(self) -> str | None:
        """The trial whose weights it inherited first."""
        return self.trials[0].parent if self.parent is not None else None

    def quality(self, measure: Measure) -> float | None:
        """Return the best that a trial of it reached."""
        reached = [t.best_quality for t in self.trials if t.best_quality is not None]
        return max(reached, key=measure.objective_value, default=None)

    @property
    def operations(self) -> int:
        """Operations of one training sample."""
        return self.trials[0].train_operations


class Line(NamedTuple):
    """A line through a row, in one lane: whether its upper and lower half are emphasised."""

    lane: int
    upper: bool
    lower: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One architecture and the lines to draw beside it."""

    architecture: Architecture
    lane: int
    through: tuple[Line, ...]
    """Lines of ancestors that have children further down."""
    branches: bool
    """Whether it hangs on the lane to its left; otherwise on its own, unless it is a root."""
    root: bool
    continues: bool
    """Whether it has children, so that a line leaves downwards."""
    emphasised: bool
    """Whether the best architecture is this one or grew from it."""
    continues_emphasised: bool


def lineage(trials: Iterable[TrialReport]) -> dict[str, Architecture]:
    """Return the architectures by the hash of their graph, with their parents and children."""
    ordered = list(trials)
    graph_of = {trial.id: trial.graph for trial in ordered}
    known: dict[str, Architecture] = {}
    for trial in ordered:
        if trial.graph not in known:
            parent = graph_of.get(trial.parent) if trial.parent is not None else None
            known[trial.graph] = Architecture(trial.graph, parent, trial.grown_by)
        known[trial.graph].trials.append(trial)
    for architecture in known.values():
        if _in_a_circle(architecture, known):
            architecture.parent = None
        if architecture.parent is not None:
            known[architecture.parent].children.append(architecture.graph)
    return known


def rows(trials: Sequence[TrialReport], best: str | None) -> list[Row]:
    """Return the architectures parents first, each subtree together.

    Args:
        trials: in order of their start.
        best: the hash of the graph whose line of descent is emphasised.
    """
    known = lineage(trials)
    sizes = _sizes(known)
    path = _path(known, best)
    found: list[Row] = []
    # Each entry: graph, lane, the lines beside it, whether it branches.
    stack: list[tuple[str, int, tuple[Line, ...], bool]] = [
        (a.graph, 0, (), False) for a in reversed(known.values()) if a.parent is None
    ]
    while stack:
        graph, lane, through, branches = stack.pop()
        node = known[graph]
        children = sorted(node.children, key=lambda child: sizes[child])
        marked = [child in path for child in children]
        found.append(
            Row(
                architecture=node,
                lane=lane,
                through=through,
                branches=branches,
                root=node.parent is None,
                continues=bool(children),
                emphasised=graph in path,
                continues_emphasised=any(marked),
            )
        )
        passing = tuple(Line(line.lane, line.lower, line.lower) for line in through)
        for place in reversed(range(len(children))):
            if place == len(children) - 1:
                stack.append((children[place], lane, passing, False))
                continue
            beside = Line(lane, any(marked[place:]), any(marked[place + 1 :]))
            stack.append((children[place], lane + 1, (*passing, beside), True))
    return found


def _in_a_circle(architecture: Architecture, known: dict[str, Architecture]) -> bool:
    """Return whether its parents lead back to it, as damaged records could say."""
    seen: set[str] = set()
    parent = architecture.parent
    while parent is not None and parent not in seen:
        if parent == architecture.graph:
            return True
        seen.add(parent)
        parent = known[parent].parent
    return False


def _sizes(known: dict[str, Architecture]) -> dict[str, int]:
    """Return how many architectures each subtree has."""
    sizes: dict[str, int] = {}
    stack = [a.graph for a in known.values() if a.parent is None]
    while stack:
        graph = stack[-1]
        waiting = [child for child in known[graph].children if child not in sizes]
        if waiting:
            stack.extend(waiting)
            continue
        sizes[graph] = 1 + sum(sizes[child] for child in known[graph].children)
        stack.pop()
    return sizes


def _path(known: dict[str, Architecture], best: str | None) -> set[str]:
    """Return the best architecture and everything that it grew from."""
    path: set[str] = set()
    while best is not None and best in known:
        path.add(best)
        best = known[best].parent
    return path
