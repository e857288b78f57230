"""Lineage: the graph of every trial, regrown from the initial graph by the recorded morphisms.

A recorded morphism refers to node names of the parent's graph regrown this way. (A graph file is
shared by all equal graphs, which may have other node names.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from aiperf_hpc.errors import MorphismError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.morphisms import from_data, grow
from aiperf_hpc.run.records import ProposalSummary, Proposed, TrialStarted, TrialSummary

Descent = TrialStarted | Proposed | TrialSummary | ProposalSummary
"""Origin of a graph: its hash, its parent and the morphisms."""


@dataclass(slots=True)
class Grown:
    """Cache of regrown graphs; several lineages of one run may share it."""

    known: dict[str, Graph] = field(default_factory=dict)
    """Graphs by the trials that trained them."""
    children: dict[tuple[int, str], Graph] = field(default_factory=dict)
    """Children by the identity of their parent's graph, whose node names the morphisms use, and
    the morphisms."""


@dataclass(eq=False, slots=True)
class Lineage:
    """Regrows the graphs of trials and caches them."""

    descent: Callable[[str], Descent | None]
    """Returns the origin of a trial's graph, or None if it is unknown."""
    initial: Graph
    """Initial graph of the search."""
    grown: Grown = field(default_factory=Grown)
    """Cache, which several lineages may share."""
    most: int | None = None
    """Maximum number of cached graphs; unlimited by default."""

    def graph(self, trial_id: str) -> Graph:
        """Return the graph that a trial trained.

        Raises:
            MorphismError: an ancestor has no record, a morphism does not apply, or the result
                does not have the recorded hash.
        """
        if self.most is not None and len(self.grown.known) >= self.most:
            # Both: the keys of children are identities of cached graphs.
            self.grown.known.clear()
            self.grown.children.clear()
        missing: dict[str, Descent] = {}
        at: str | None = trial_id
        while at is not None and at not in self.grown.known:
            descent = self.descent(at)
            if descent is None:
                grew = f"trial {list(missing)[-1]} grew from" if missing else "trial"
                raise MorphismError(f"{grew} {at}, which is unknown")
            if at in missing:
                raise MorphismError(f"trial {at} is its own ancestor")
            missing[at] = descent
            at = descent.parent
        for name, descent in reversed(missing.items()):
            self.grown.known[name] = self._grow(name, descent)
        return self.grown.known[trial_id]

    def keep(self, name: str, descent: Descent, graph: Graph) -> None:
        """Cache the graph of a trial or proposal that was grown from its parent's graph here."""
        parent = self.initial if descent.parent is None else self.graph(descent.parent)
        child = self.grown.children.setdefault(_key(parent, descent), graph)
        self.grown.known.setdefault(name, child)

    def _grow(self, name: str, descent: Descent) -> Graph:
        parent = self.initial if descent.parent is None else self.grown.known[descent.parent]
        # The trials of a round share one graph, which is grown and cached once.
        key = _key(parent, descent)
        graph = self.grown.children.get(key)
        if graph is None:
            graph = grow(parent, [from_data(data) for data in descent.morphisms])
            self.grown.children[key] = graph
        if graph.hash != descent.graph:
            raise MorphismError(
                f"trial {name}: its morphisms give the graph {graph.hash}, "
                f"its record has {descent.graph}"
            )
        return graph


def _key(parent: Graph, descent: Descent) -> tuple[int, str]:
    return id(parent), repr(descent.morphisms)
