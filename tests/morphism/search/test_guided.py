from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.support.networks import random_chain, residual, rng, two_stems

from aiperf_hpc.graph import Add, Conv2D, Graph
from aiperf_hpc.morphism.operators.morphisms import MORPHISMS, grow
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.morphism.search import guided
from aiperf_hpc.morphism.search.base import (
    Bounds,
    Choice,
    Observation,
    View,
)
from aiperf_hpc.morphism.search.guided import GuidedSearcher
from aiperf_hpc.morphism.surrogate.gaussian_process import Prediction, Surrogate, Vectors
from aiperf_hpc.morphism.surrogate.graph_description import describe

WIDE = Bounds(parameters=10**9, forward_operations=10**15, depth=10**4, growth=1e9)


def searcher() -> GuidedSearcher:
    return GuidedSearcher(kappa=1.0, acquisition_evaluations=16, max_morphisms=6)


def small() -> Graph:
    return resnet50((16, 16, 3), 10, stem="cifar", base_width=4, blocks=(1, 1, 1, 1))


def worth(graph: Graph) -> float:
    """Return an accuracy that more layers and branches improve, and larger kernels do not."""
    convs = [n.layer for n in graph.nodes if isinstance(n.layer, Conv2D)]
    joins = sum(len(n.inputs) - 1 for n in graph.nodes if isinstance(n.layer, Add)) - 4
    first = [n.layer for n in small().nodes if isinstance(n.layer, Conv2D)]
    layers = len(convs) - len(first)
    kernels = sum(math.log2(c.kernel) for c in convs) - sum(math.log2(c.kernel) for c in first)
    return 0.5 + 0.2 * math.tanh(layers / 6) + 0.2 * math.tanh(joins / 4) - 0.01 * kernels


class World:
    """What has been trained, and is."""

    def __init__(self, *graphs: Graph, value: Callable[[Graph], float] = worth) -> None:
        self.value = value
        self.graphs: dict[str, Graph] = {}
        self.observations: list[Observation] = []
        self.pending: dict[str, str] = {}
        for graph in graphs or (small(),):
            self.train(graph)

    def train(self, graph: Graph, *, can_grow: bool = True) -> None:
        trial = f"t{len(self.graphs)}"
        self.graphs[trial] = graph
        self.observations.append(Observation(trial, graph.hash, self.value(graph), can_grow))

    def propose(self, choice: Choice) -> None:
        name = f"p{len(self.pending)}"
        self.graphs[name], self.pending[choice.child.hash] = choice.child, name

    def view(self, bounds: Bounds = WIDE) -> View:
        known = {graph.hash for graph in self.graphs.values()}
        return View(
            list(self.observations), dict(self.pending), self.graphs.__getitem__, known,
            Counter(), bounds,
        )  # fmt: skip


def test_it_learns() -> None:
    """With 24 trainings it beats random morphing of as many (benchmarks/search_quality.py)."""

    def guided_best(seed: int) -> float:
        world, search, random = World(), searcher(), rng(seed)
        for _ in range(24):
            world.train(search.choose(world.view(), random).child)
        return max(o.value for o in world.observations)

    def random_best(seed: int) -> float:
        graphs, random = [small()], rng(seed)
        for _ in range(24):
            parent = graphs[int(random.integers(len(graphs)))]
            graphs.append(grow(parent, random_chain(parent, int(random.integers(1, 4)), random)))
        return max(map(worth, graphs))

    found = [(guided_best(seed), random_best(seed)) for seed in range(2)]
    assert all(ours > theirs for ours, theirs in found), found


def test_what_it_predicts_is_told() -> None:
    world = World()
    for _ in range(3):
        world.train(small())  # The same graph again: one point, observed four times.
    world.train(residual())
    choice = searcher().choose(world.view(), rng())
    prediction = choice.prediction
    assert prediction["graphs"] == 2
    assert prediction["pending"] == prediction["widenings"] == 0
    bound = prediction["mean"] + prediction["kappa"] * prediction["deviation"]
    assert prediction["acquisition"] == pytest.approx(bound)
    parent = next(o for o in world.observations if o.trial == choice.parent)
    assert prediction["parent_accuracy"] == parent.value


def test_many_searchers_at_once_propose_different_graphs() -> None:
    """Without talking: each sees what the others proposed in rounds before, not in the same."""
    world = World()
    for seed in range(6):
        world.train(grow(small(), random_chain(small(), 2, rng(seed))))
    searchers = [searcher() for _ in range(4)]
    chosen: list[str] = []
    for number in range(6):
        views = [world.view() for _ in searchers]
        choices = [s.choose(v, rng(100 * number + i))
                   for i, (s, v) in enumerate(zip(searchers, views, strict=True))]  # fmt: skip
        for choice in choices:
            assert choice.child.hash not in views[0].known
            world.propose(choice)
        chosen += [choice.child.hash for choice in choices]
    # Those of one moment may be equal, the more the smaller the graph.
    assert len(set(chosen)) >= 12
    assert choice.prediction["pending"] == len(world.pending) - len(set(chosen[-4:]))


def test_searchers_of_one_moment_choose_differently_where_there_is_room() -> None:
    first = resnet50((32, 32, 3), 10, stem="cifar", base_width=16)
    grown = [grow(first, random_chain(first, 2, rng(seed))) for seed in range(12)]
    view = World(first, *grown).view()
    chosen = {searcher().choose(view, rng(seed)).child.hash for seed in range(16)}
    assert len(chosen) >= 13


def test_pending_graphs_make_others_look_elsewhere() -> None:
    world = World()
    for seed in range(12):
        world.train(grow(small(), random_chain(small(), 2, rng(seed))))
    alone = searcher().choose(world.view(), rng(1))
    crowd = replace(world.view(), pending={alone.child.hash: "p"})
    graph = crowd.graph
    crowd = replace(crowd, graph=lambda name: alone.child if name == "p" else graph(name))
    # With the same random numbers the same graphs are drawn; what is known of them differs.
    again = searcher()
    other = again.choose(crowd, rng(1))
    there = again.surrogate
    vector = describe(alone.child)
    assert there.expecting([vector])([vector]).deviation < there.expecting(())([vector]).deviation
    assert other.prediction["pending"] == 1


def test_parents_need_weights_but_all_trials_are_observed() -> None:
    world = World()
    for _ in range(2):  # Two searchers may train one graph within the lag of their knowledge.
        world.train(residual(), can_grow=False)
    for seed in range(5):
        choice = searcher().choose(world.view(), rng(seed))
        assert (choice.parent, choice.prediction["graphs"]) == ("t0", 2)


def test_where_everything_is_known_a_known_graph_is_repeated_and_says_so() -> None:
    class Everything(set[str]):
        def __contains__(self, _: object) -> bool:
            return True

    view = replace(World().view(), known=Everything())
    choice = searcher().choose(view, rng())
    assert choice.prediction["repeated"] == 1.0


def crowd() -> list[Graph]:
    """More graphs than the tree begins with."""
    chains = (grow(residual(), random_chain(residual(), 2, rng(seed))) for seed in range(80))
    graphs = list({g.hash: g for g in chains}.values())
    assert len(graphs) > guided.BEST_ROOTS + guided.OTHER_ROOTS
    return graphs


def test_more_parents_than_the_tree_begins_with_are_reached() -> None:
    """All but the worst have outgrown the bounds."""
    large, lone = crowd(), two_stems()
    world = World(*large, lone, value=lambda g: 0.1 if g == lone else 0.9)
    bounds = replace(WIDE, parameters=int(1.5 * lone.parameter_count))
    assert bounds.parameters < min(g.parameter_count for g in large)
    for seed in range(3):
        choice = searcher().choose(world.view(bounds), rng(seed))
        assert world.graphs[choice.parent] == lone


def test_parents_whose_children_are_all_out_of_bounds_are_left() -> None:
    """They are within the bounds themselves."""
    large, lone = [residual(width=4 + n) for n in range(6)], two_stems()
    world = World(*large, lone, value=lambda g: 0.1 if g == lone else 0.9)
    bounds = replace(WIDE, fits=lambda g: g in large or lone_like(g))
    choice = searcher().choose(world.view(bounds), rng())
    assert world.graphs[choice.parent] == lone


def lone_like(graph: Graph) -> bool:
    """Return whether a graph has grown from ``two_stems``."""
    return {node.name for node in two_stems().nodes} <= {node.name for node in graph.nodes}


def test_what_is_not_finite_is_no_observation() -> None:
    with pytest.raises(ValueError, match="trial t1 has the value nan: it has failed"):
        Observation("t1", "g", math.nan, can_grow=True)


def test_a_search_that_knows_little_makes_single_steps() -> None:
    world, search = World(), searcher()
    for number in range(guided.GRAPHS_A_LEVEL - 1):
        choice = search.choose(world.view(), rng(number))
        assert len(choice.morphisms) == 1
        world.train(choice.child)
    lengths = set()
    for number in range(2 * guided.GRAPHS_A_LEVEL):
        choice = search.choose(world.view(), rng(number))
        lengths.add(len(choice.morphisms))
        world.train(choice.child)
    assert lengths > {1}
    assert max(lengths) <= 3


def test_rounding_errors_choose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """They depend on the processor and the number of threads."""
    view = World(*crowd()[:30]).view()
    choices = [searcher().choose(view, rng(seed)).child for seed in range(15)]
    expecting, noise = Surrogate.expecting, rng(99)

    def inexact(surrogate: Surrogate, pending: Vectors) -> Callable[[Vectors], Prediction]:
        predict = expecting(surrogate, pending)

        def predicted(vectors: Vectors) -> Prediction:
            exact = predict(vectors)
            return Prediction(
                *(
                    each * (1 + 1e-12 * noise.normal(size=each.shape))
                    for each in (exact.mean, exact.deviation)
                )
            )

        return predicted

    monkeypatch.setattr(Surrogate, "expecting", inexact)
    assert [searcher().choose(view, rng(seed)).child for seed in range(15)] == choices


def test_all_kinds_are_used() -> None:
    world, search = World(value=lambda g: int(g.hash[:2], 16) / 256), searcher()
    kinds: Counter[str] = Counter()
    for number in range(30):
        choice = search.choose(world.view(), rng(number))
        kinds.update(step.kind for step in choice.morphisms)
        world.train(choice.child)
    assert set(kinds) == set(MORPHISMS)
