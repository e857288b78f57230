"""Layout of the architectures' family tree, one architecture per row, with connecting lines.

Each row has a lane. The child with the most descendants continues its parent's lane and comes
last; every other child opens the next lane to the right. A lane is opened only beside a subtree
at least as large, so n architectures need at most log2(n) + 1 lanes at any depth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from aiperf_hpc.objective import QualityMetric
from aiperf_hpc.results.report.parts import TrialReport


@dataclass(slots=True)
class Architecture:
    """A graph, its trials, and the architectures derived from it."""

    graph: str
    parent: str | None
    """Parent graph."""
    morphisms_text: str
    trials: list[TrialReport] = field(default_factory=list)
    children: list[str] = field(default_factory=list)

    @property
    def grown_from(self) -> str | None:
        """Trial whose weights it inherited first."""
        return self.trials[0].parent if self.parent is not None else None

    def quality(self, metric: QualityMetric) -> float | None:
        """Return the best quality of its trials."""
        reached = [t.best_quality for t in self.trials if t.best_quality is not None]
        return max(reached, key=metric.objective_value, default=None)

    @property
    def operations(self) -> int:
        """Operations per training sample."""
        return self.trials[0].train_operations


class Line(NamedTuple):
    """A line through a row in one lane, with flags to emphasize its upper and lower half."""

    lane: int
    upper: bool
    lower: bool


class Row(NamedTuple):
    """One architecture with the lines of its row."""

    architecture: Architecture
    lane: int
    through: tuple[Line, ...]
    """Lines of ancestors with children in later rows."""
    branches: bool
    """Whether it branches from the lane to its left; otherwise it continues its own lane or is a
    root."""
    root: bool
    continues: bool
    """Whether it has children, which need a line downwards."""
    emphasised: bool
    """Whether it is the best architecture or one of its ancestors."""
    continues_emphasised: bool


def lineage(trials: Iterable[TrialReport]) -> dict[str, Architecture]:
    """Return the architectures by the hash of their graph, with their parents and children."""
    ordered = list(trials)
    graph_of = {trial.id: trial.graph for trial in ordered}
    known: dict[str, Architecture] = {}
    for trial in ordered:
        if trial.graph not in known:
            parent = graph_of.get(trial.parent) if trial.parent is not None else None
            known[trial.graph] = Architecture(trial.graph, parent, trial.morphisms_text)
        known[trial.graph].trials.append(trial)
    for architecture in known.values():
        if architecture.graph in _ancestors(architecture.parent, known):
            architecture.parent = None
        if architecture.parent is not None:
            known[architecture.parent].children.append(architecture.graph)
    return known


def rows(trials: Sequence[TrialReport], best: str | None) -> list[Row]:
    """Return the architectures in depth-first order, parents first.

    Args:
        trials: trials in order of their start.
        best: hash of the graph whose line of descent is emphasized.
    """
    known = lineage(trials)
    sizes = Counter(ancestor for graph in known for ancestor in _ancestors(graph, known))
    path = set(_ancestors(best, known))
    found: list[Row] = []
    # Each entry: graph, lane, lines of the row, whether it branches.
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


def _ancestors(graph: str | None, known: Mapping[str, Architecture]) -> list[str]:
    """Return a graph and its ancestors, once each: damaged records could state a circle."""
    found: dict[str, None] = {}
    while graph is not None and graph in known and graph not in found:
        found[graph] = None
        graph = known[graph].parent
    return list(found)
