"""Guided searcher: network morphism with Bayesian optimization.

As in Auto-Keras (Jin et al. 2019), on which the benchmark's reference builds: a Gaussian process
over graphs, the upper confidence bound as acquisition function, and simulated annealing over the
tree of morphisms from all trained graphs. The Gaussian process differs; docs/decisions/search.md
explains why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter

import numpy as np

from aiperf_hpc.errors import MorphismError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.morphisms import MORPHISMS, Morphism
from aiperf_hpc.morphism.search.base import Choice, Observation, View, exhausted
from aiperf_hpc.morphism.surrogate.gaussian_process import Prediction, Repeats, Surrogate
from aiperf_hpc.morphism.surrogate.graph_description import Vector, describe, sketch
from aiperf_hpc.run.records import Seen

BRANCH = 4
"""Nodes of the tree expanded at once."""
DRAFTS = 12
"""Random morphisms of a node that are scored by approximate descriptions; the best is applied."""
WIDENINGS = 8
"""Maximum number of expansions of the tree, each from more trained graphs."""
MOST_FAILURES = 4
"""Children outside the limits after which a node is no longer expanded."""
BEST_ROOTS, OTHER_ROOTS = 48, 16
"""Roots of the tree at first: the best trained graphs, and random ones."""
MOST_PENDING = 512
"""Pending graphs passed to the surrogate: the latest ones. The others are only not proposed."""
COLDEST = 0.02
"""Minimum temperature."""
GRAPHS_A_LEVEL = 12
"""Number of observed graphs per additional morphism between a candidate and its parent. Morphisms
cannot be undone, so large steps without observations would overshoot."""
TIE = 1e-6
"""Resolution of acquisition values, in standard deviations of the observed objective values. Many
candidates are equally good; without it, rounding errors, which depend on the processor and the
number of threads, would choose among them."""
_KINDS = tuple(sorted(MORPHISMS))


@dataclass(eq=False, slots=True)
class _TreeNode:
    """A node of the tree of morphisms."""

    root: Observation
    """The trained graph at its root."""
    morphisms: tuple[Morphism, ...]
    vector: Vector
    """Description of the graph, (SIZE,)."""
    graph: Graph | None
    """The graph; of a root, None until it is needed."""
    mean: float = 0.0
    deviation: float = 0.0
    acquisition: float = 0.0
    above: _TreeNode | None = None
    """Parent node and morphism; None for a root."""
    failures: int = 0
    """Number of children outside the limits."""
    closed: bool = False
    """Whether no child within the limits is expected."""

    def line(self) -> list[_TreeNode]:
        """Return the path from its root to this node."""
        return [self] if self.above is None else [*self.above.line(), self]

    def fail(self) -> None:
        """Mark it as outside the limits, with all that it could grow into."""
        self.closed = True
        if self.above is not None:
            self.above.failures += 1
            if self.above.failures >= MOST_FAILURES:
                self.above.closed = True


@dataclass(slots=True)
class GuidedSearcher:
    """Proposes the graph with the highest upper confidence bound that it finds.

    The roots of the tree are trained graphs with stored weights. Nodes are sampled with probability
    ~ exp(acquisition / temperature). Random morphisms of a node are scored by approximate
    descriptions, the best one is applied, and the temperature decreases. The tree first grows
    everywhere, then where the acquisition function is high. A candidate may be several morphisms
    away from its trained parent.
    """

    kappa: float
    """Mean weight of the standard deviation in the acquisition function. The weight is sampled from
    an exponential distribution for each candidate, so that searchers with equal observations choose
    differently and sometimes explore (Hutter et al. 2012, section 3.1)."""
    acquisition_evaluations: int
    """Number of evaluated children per candidate."""
    max_morphisms: int
    """Maximum number of morphisms between a candidate and its parent."""
    temperature: float = 0.5
    """Initial temperature, in standard deviations of the observed objective values."""
    surrogate: Surrogate = field(default_factory=Surrogate, repr=False)
    """The surrogate, a cache of all observations."""
    _descriptions: dict[str, Vector] = field(default_factory=dict, repr=False)
    """Descriptions by hash, (SIZE,) each: of pending graphs and of those observed before
    ``begin_anew``."""
    _learned: Seen | None = None
    """The records from which the covariance was last estimated."""

    def choose(self, view: View, rng: np.random.Generator) -> Choice:
        """Return the best new candidate of the tree within the limits.

        If all are known, the result is one of these, with ``repeated`` in its prediction.

        Raises:
            SearchSpaceExhaustedError: no graph within the limits was found.
            SurrogateError: the surrogate could not be computed.
        """
        roots = _best_of_each_graph(view.observations)
        if not roots:
            raise exhausted(0, 0, Counter())
        self.learn(view)
        tree = _Tree(self, view, self._pending(view), roots, rng)
        spare: _TreeNode | None = None
        for widening in range(WIDENINGS):
            for place in tree.expand(widening):
                graph = tree.graph(place)
                broken = view.bounds.broken(graph, view.graph(place.root.trial))
                if broken is not None:
                    place.fail()
                    tree.obstacles[broken] += 1
                elif graph.hash in view.known:
                    tree.obstacles["known already"] += 1
                    spare = spare or place
                else:
                    return self._choice(tree, place, widening)
        if spare is not None:
            return self._choice(tree, spare, WIDENINGS, repeated=1.0)
        raise exhausted(tree.made, tree.roots, tree.obstacles)

    @property
    def reach(self) -> int:
        """Maximum number of morphisms for the current number of observations."""
        return min(self.max_morphisms, 1 + len(self.surrogate) // GRAPHS_A_LEVEL)

    def begin_anew(self) -> None:
        """Forget all observations and the covariance, but no descriptions."""
        self._descriptions |= self.surrogate.vectors()
        self.surrogate, self._learned = Surrogate(), None

    def learn(self, view: View) -> None:
        """Update the surrogate. Raises SurrogateError if it cannot be computed."""
        values: dict[str, list[float]] = {}
        names: dict[str, str] = {}
        for observation in view.observations:
            values.setdefault(observation.graph, []).append(observation.value)
            names[observation.graph] = observation.trial
        if self.surrogate.learn(
            {graph: Repeats.of(own) for graph, own in values.items()},
            lambda graph: self.description(graph, names[graph], view),
        ):
            self._learned = view.seen

    def _pending(self, view: View) -> list[Vector]:
        latest = list(view.pending.items())[-MOST_PENDING:]
        # Drop graphs that are no longer pending, so that the cache stays small.
        self._descriptions = {graph: self.description(graph, name, view) for graph, name in latest}
        return list(self._descriptions.values())

    def description(self, graph: str, name: str, view: View) -> Vector:
        """Return the cached description of the graph of a trial or proposal."""
        if graph in self.surrogate:
            return self.surrogate.vector(graph)
        known = self._descriptions.get(graph)
        return describe(view.graph(name)) if known is None else known

    def _choice(self, tree: _Tree, place: _TreeNode, widenings: int, **more: float) -> Choice:
        prediction = {
            "mean": place.mean,
            "deviation": place.deviation,
            "acquisition": place.acquisition,
            "kappa": tree.kappa,
            "parent_accuracy": place.root.value,
            "graphs": float(len(self.surrogate)),
            "pending": float(len(tree.pending)),
            "widenings": float(widenings),
        }
        graphs = tuple(map(tree.graph, place.line()))
        prediction |= more
        return Choice(place.root.trial, place.morphisms, graphs, prediction, self._learned)


def _best_of_each_graph(observations: Sequence[Observation]) -> list[Observation]:
    """Return the possible parents, best first, one trial per graph."""
    best: dict[str, Observation] = {}
    for observation in observations:
        if observation.can_grow:
            known = best.get(observation.graph)
            if known is None or observation.value > known.value:
                best[observation.graph] = observation
    return sorted(best.values(), key=attrgetter("value"), reverse=True)


class _Tree:
    """The tree of morphisms for one choice."""

    def __init__(
        self,
        searcher: GuidedSearcher,
        view: View,
        pending: list[Vector],
        roots: list[Observation],
        rng: np.random.Generator,
    ) -> None:
        self._searcher = searcher
        self._view = view
        self._rng = rng
        self.kappa = float(rng.exponential(searcher.kappa))
        self.pending = pending
        self._predict = searcher.surrogate.expecting(pending)
        self.obstacles: Counter[str] = Counter()
        others = roots[BEST_ROOTS:]
        # In random order, so that searchers with equal observations expand differently.
        self._waiting = [others[i] for i in rng.permutation(len(others))]
        self._places: list[_TreeNode] = []
        self._plant(roots[:BEST_ROOTS])

    @property
    def roots(self) -> int:
        """Number of trained graphs used as roots so far."""
        return sum(place.above is None for place in self._places)

    @property
    def made(self) -> int:
        """Number of evaluated graphs."""
        return len(self._places) - self.roots

    def _plant(self, roots: list[Observation]) -> None:
        """Add these roots, and some of the waiting ones."""
        roots = roots + self._waiting[:OTHER_ROOTS]
        del self._waiting[:OTHER_ROOTS]
        vector = self._searcher.description
        self._add(_TreeNode(r, (), vector(r.graph, r.trial, self._view), None) for r in roots)

    def graph(self, place: _TreeNode) -> Graph:
        """Return the graph of a node."""
        if place.graph is None:
            place.graph = self._view.graph(place.root.trial)
        return place.graph

    def expand(self, widening: int) -> list[_TreeNode]:
        """Expand the tree; return the new nodes, highest acquisition first."""
        if widening:
            self._plant([])
            # Only now: checking a root regrows its graph, and most choices end before.
            self._close_roots()
        searcher = self._searcher
        made: list[_TreeNode] = []
        # All graphs so far were known or outside the limits: widen the search each time.
        begin = searcher.temperature * 2.0**widening
        for done in range(0, searcher.acquisition_evaluations, BRANCH):
            warmth = begin * (1.0 - done / searcher.acquisition_evaluations) + COLDEST
            drawn = self._draw(min(BRANCH, searcher.acquisition_evaluations - done), warmth)
            made += self._add(self._child(*draft) for draft in self._best_drafts(drawn))
        return sorted(made, key=attrgetter("acquisition"), reverse=True)

    def _close_roots(self) -> None:
        """Close roots that have reached a limit themselves, if these stop the tree."""
        bounds = self._view.bounds
        for root in self._places:
            if root.above is None and not root.closed:
                graph = self.graph(root)
                root.closed = bounds.broken(graph, graph) is not None

    def _draw(self, wanted: int, warmth: float) -> list[_TreeNode]:
        """Return nodes to expand, sampled by their acquisition."""
        searcher = self._searcher
        places = [p for p in self._places if not p.closed and len(p.morphisms) < searcher.reach]
        if not places:
            return []
        promise = np.array([place.acquisition for place in places])
        # In units of the scale, so that temperatures are comparable between metrics.
        chances = np.exp((promise - promise.max()) / (warmth * searcher.surrogate.scale))
        drawn = self._rng.choice(len(places), wanted, p=chances / chances.sum())
        return [places[i] for i in drawn]

    def _best_drafts(self, places: list[_TreeNode]) -> Iterator[tuple[_TreeNode, Morphism]]:
        """Yield for each node the best of some random morphisms."""
        drafts = [(place, self._drafts(place)) for place in places]
        drafts = [(place, steps) for place, steps in drafts if steps]
        if not drafts:
            return
        sketches = [sketch(self.graph(place), place.vector, steps) for place, steps in drafts]
        promise = iter(self._acquisition(self._predict(np.concatenate(sketches))))
        for place, steps in drafts:
            ranked = [(next(promise), step) for step in steps]
            yield place, max(ranked, key=itemgetter(0))[1]

    def _child(self, place: _TreeNode, step: Morphism) -> _TreeNode:
        graph = step.child(self.graph(place))
        steps = (*place.morphisms, step)
        return _TreeNode(place.root, steps, describe(graph), graph, above=place)

    def _drafts(self, place: _TreeNode) -> list[Morphism]:
        """Return random morphisms of a node."""
        graph = self.graph(place)
        drafts: list[Morphism] = []
        for _ in range(DRAFTS):
            kind = _KINDS[self._rng.integers(len(_KINDS))]
            try:
                drafts.append(MORPHISMS[kind].sample(graph, self._rng))
            except MorphismError:
                self.obstacles[f"no place for {kind}"] += 1
        return drafts

    def _add(self, new: Iterable[_TreeNode]) -> list[_TreeNode]:
        """Add nodes with their predictions to the tree; return them."""
        places = list(new)
        if not places:
            return places
        prediction = self._predict([place.vector for place in places])
        promise = self._acquisition(prediction)
        for i, place in enumerate(places):
            place.mean = float(prediction.mean[i])
            place.deviation = float(prediction.deviation[i])
            place.acquisition = promise[i]
        self._places += places
        return places

    def _acquisition(self, prediction: Prediction) -> list[float]:
        bound = prediction.mean + self.kappa * prediction.deviation
        unit = TIE * self._searcher.surrogate.scale
        rounded: list[float] = (unit * np.rint(bound / unit)).tolist()
        return rounded
