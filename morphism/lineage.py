"""The graph of every trial, grown again from the initial one by the recorded morphisms.

The node names that a record's morphism speaks of are those of its parent's graph grown this
way. (A graph file is shared by all equal graphs, whose nodes may be named otherwise.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from aiperf_hpc.errors import MorphismError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.grow import grow
from aiperf_hpc.morphism.operators.morphisms import from_data
from aiperf_hpc.run.records import ProposalSummary, Proposed, TrialStarted, TrialSummary

Descent = TrialStarted | Proposed | TrialSummary | ProposalSummary
"""A record of where a graph comes from: its hash, its parent and the morphisms."""


@dataclass(slots=True)
class Grown:
    """Graphs that were grown; several lineages of one run may share it."""

    known: dict[str, Graph] = field(default_factory=dict)
    """Graphs by the trials that trained them."""
    children: dict[tuple[int, str], Graph] = field(default_factory=dict)
    """Children by the identity of their parent, whose names the morphisms use, and the
    morphisms."""


class Lineage:
    """Grows trials' graphs and remembers them."""

    def __init__(
        self,
        descent: Callable[[str], Descent | None],
        initial: Graph,
        grown: Grown | None = None,
        most: int | None = None,
    ) -> None:
        """Grow from the initial graph, and from what was grown already.

        Args:
            descent: of a trial; None when it is unknown.
            initial: the graph that everything grew from.
            grown: what was grown already; nothing when not given.
            most: graphs that are remembered; all when not given.
        """
        self._descent = descent
        self.initial = initial
        grown = grown or Grown()
        self._known = grown.known
        self._children = grown.children
        self._most = most

    def graph(self, trial_id: str) -> Graph:
        """Return the graph that a trial trained.

        Raises:
            MorphismError: an ancestor has no record, a morphism does not apply, or the result
                is not the graph whose hash the trial recorded.
        """
        if self._most is not None and len(self._known) >= self._most:
            # Both, since the keys of children are identities of graphs.
            self._known.clear()
            self._children.clear()
        missing: dict[str, Descent] = {}
        at: str | None = trial_id
        while at is not None and at not in self._known:
            descent = self._descent(at)
            if descent is None:
                grew = f"trial {list(missing)[-1]} grew from" if missing else "trial"
                raise MorphismError(f"{grew} {at}, which is unknown")
            if at in missing:
                raise MorphismError(f"trial {at} is its own ancestor")
            missing[at] = descent
            at = descent.parent
        for name, descent in reversed(missing.items()):
            self._known[name] = self._grow(name, descent)
        return self._known[trial_id]

    def keep(self, name: str, descent: Descent, graph: Graph) -> None:
        """Remember the graph of a trial or proposal, grown already from its parent's graph here."""
        parent = self.initial if descent.parent is None else self.graph(descent.parent)
        child = self._children.setdefault(_key(parent, descent), graph)
        self._known.setdefault(name, child)

    def _grow(self, name: str, descent: Descent) -> Graph:
        parent = self.initial if descent.parent is None else self._known[descent.parent]
        # The trials of a round train one graph: it is grown and kept once.
        key = _key(parent, descent)
        graph = self._children.get(key)
        if graph is None:
            graph = grow(parent, [from_data(data) for data in descent.morphisms])
            self._children[key] = graph
        if graph.hash != descent.graph:
            raise MorphismError(
                f"trial {name}: its morphisms give the graph {graph.hash}, "
                f"its record says {descent.graph}"
            )
        return graph


def _key(parent: Graph, descent: Descent) -> tuple[int, str]:
    return id(parent), repr(descent.morphisms)
