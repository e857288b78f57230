"""Searches to compare the guided one with, and the loop that all of them run in.

Each is a ``Searcher`` like the benchmark's own: it sees the same view, keeps the same bounds and
proposes nothing that is known already. So what differs is how the next graph is chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from aiperf_hpc.errors import MorphismError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.morphisms import MORPHISMS, Morphism
from aiperf_hpc.morphism.search.base import Bounds, Choice, Observation, Searcher, View, exhausted

KINDS = tuple(sorted(MORPHISMS))
ATTEMPTS = 1000
POPULATION, SAMPLE = 16, 5


@dataclass(frozen=True, slots=True)
class RandomMorphing:
    """Grows any trained graph by 1 to ``steps`` random morphisms."""

    steps: int

    @property
    def name(self) -> str:
        return f"random morphing, {_up_to(self.steps)}"

    def choose(self, view: View, rng: np.random.Generator) -> Choice:
        parents = view.observations
        return _grown(view, rng, self.steps, lambda: parents[int(rng.integers(len(parents)))])


@dataclass(frozen=True, slots=True)
class RegularisedEvolution:
    """Real et al. 2019, with 1 to ``steps`` random morphisms as the mutation.

    The parent is the best of a sample, drawn with replacement, of the population: the youngest
    trained graphs, the oldest of which leaves when a new one comes. All searches begin with one
    graph, so that the population is not filled at random first: the tournament is held from the
    first candidate on among those that there are, which with few evaluations is to its advantage.
    """

    steps: int
    population: int = POPULATION
    sample: int = SAMPLE

    @property
    def name(self) -> str:
        return f"regularised evolution, {_up_to(self.steps)}"

    def choose(self, view: View, rng: np.random.Generator) -> Choice:
        alive = view.observations[-self.population :]

        def tournament() -> Observation:
            drawn = rng.integers(len(alive), size=self.sample)
            best: Observation = max((alive[i] for i in drawn), key=attrgetter("value"))
            return best

        return _grown(view, rng, self.steps, tournament)


def _up_to(steps: int) -> str:
    return "1 morphism" if steps == 1 else f"1 to {steps} morphisms"


def _grown(
    view: View, rng: np.random.Generator, steps: int, draw: Callable[[], Observation]
) -> Choice:
    """Return a new graph within the bounds, 1 to ``steps`` morphisms from a parent drawn."""
    obstacles: Counter[str] = Counter()
    for _ in range(ATTEMPTS):
        parent = draw()
        graph = view.graph(parent.trial)
        graphs, morphisms = mutated(graph, int(rng.integers(1, steps + 1)), rng)
        choice = Choice(parent.trial, morphisms, graphs)
        broken = view.bounds.broken(choice.child, graph)
        if broken is not None:
            obstacles[broken] += 1
        elif choice.child.hash in view.known:
            obstacles["known already"] += 1
        else:
            return choice
    raise exhausted(ATTEMPTS, len(view.observations), obstacles)


def mutated(
    graph: Graph, steps: int, rng: np.random.Generator
) -> tuple[tuple[Graph, ...], tuple[Morphism, ...]]:
    """Draw ``steps`` random morphisms, all kinds as likely.

    Returns ``graph`` and what each of them makes of the one before it, and the morphisms.
    """
    graphs = [graph]
    morphisms: list[Morphism] = []
    while len(morphisms) < steps:
        try:
            morphism = MORPHISMS[KINDS[rng.integers(len(KINDS))]].sample(graphs[-1], rng)
        except MorphismError:
            continue  # There is no place for this kind; another one is drawn.
        graphs.append(morphism.child(graphs[-1]))
        morphisms.append(morphism)
    return tuple(graphs), tuple(morphisms)


@dataclass(slots=True)
class Search:
    """A running search. The first evaluation is that of the initial graph."""

    graphs: dict[str, Graph]
    """The graphs that were evaluated, by trial."""
    observations: list[Observation] = field(default_factory=list)
    """The trials whose evaluation gave a value, oldest first."""
    kinds: Counter[str] = field(default_factory=Counter)

    def view(self, bounds: Bounds) -> View:
        known = {graph.hash for graph in self.graphs.values()}
        return View(self.observations, {}, self.graphs.__getitem__, known, self.kinds, bounds)


Evaluate = Callable[[str, Choice], float | None]
"""What trains a choice for a trial; returns the accuracy, None where the training failed."""


def run(
    searcher: Searcher,
    initial: Graph,
    bounds: Bounds,
    evaluations: int,
    evaluate: Evaluate,
    rng: np.random.Generator,
) -> Search:
    """Evaluate ``initial``, then what the searcher chooses, ``evaluations`` graphs in all."""
    search = Search({})
    choice = Choice("", (), (initial,))
    for number in range(evaluations):
        if number:
            choice = searcher.choose(search.view(bounds), rng)
        trial = str(number)
        search.graphs[trial] = choice.child
        search.kinds.update(morphism.kind for morphism in choice.morphisms)
        accuracy = evaluate(trial, choice)
        if accuracy is not None:
            search.observations.append(Observation(trial, choice.child.hash, accuracy, True))
    return search
