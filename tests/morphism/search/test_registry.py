from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tests.support.networks import plain, residual, rng, two_stems

from aiperf_hpc.graph import Conv2D, Graph
from aiperf_hpc.morphism.operators.morphisms import MORPHISMS, generations
from aiperf_hpc.morphism.search.base import (
    Bounds,
    Choice,
    Observation,
    Searcher,
    SearchSpaceExhaustedError,
    View,
)
from aiperf_hpc.morphism.search.greedy import GreedySearcher
from aiperf_hpc.morphism.search.guided import GuidedSearcher
from aiperf_hpc.ops_counter.count import count

WIDE = Bounds(parameters=10**9, forward_operations=10**15, depth=10**4, growth=1e9)
SEARCHERS: dict[str, Callable[[], Searcher]] = {
    "greedy": lambda: GreedySearcher(random_parent_probability=0.3),
    "guided": lambda: GuidedSearcher(kappa=1.0, acquisition_evaluations=12, max_morphisms=4),
}
BEST_ONLY = GreedySearcher(random_parent_probability=0.0)
every_searcher = pytest.mark.parametrize("make", SEARCHERS.values(), ids=SEARCHERS.keys())


def seen(
    *seen: tuple[Observation, Graph],
    bounds: Bounds = WIDE,
    known: Iterable[str] = (),
    kinds: Counter[str] | None = None,
) -> View:
    graphs = {observation.trial: graph for observation, graph in seen}
    hashes = frozenset(known) | {graph.hash for graph in graphs.values()}
    kinds = Counter() if kinds is None else kinds
    return View([o for o, _ in seen], {}, graphs.__getitem__, hashes, kinds, bounds)


def observed(
    graph: Graph, value: float = 0.5, *, trial: str = "t1", can_grow: bool = True
) -> tuple[Observation, Graph]:
    return Observation(trial, graph.hash, value, can_grow), graph


def search(searcher: Searcher, view: View, steps: int, seed: int = 0) -> list[Choice]:
    """Let every choice be trained a little better than the last."""
    generator = rng(seed)
    choices: list[Choice] = []
    known = {o.trial: view.graph(o.trial) for o in view.observations}
    for step in range(steps):
        choice = searcher.choose(view, generator)
        choices.append(choice)
        new, known[f"g{step}"] = observed(choice.child, 0.5 + 0.01 * step, trial=f"g{step}")
        view = replace(
            view,
            observations=[*view.observations, new],
            graph=known.__getitem__,
            known=view.known | {choice.child.hash},
            kinds=view.kinds + Counter(step.kind for step in choice.morphisms),
        )
    return choices


@every_searcher
def test_a_choice_is_what_its_morphisms_make_of_its_parent(make: Callable[[], Searcher]) -> None:
    graphs = {"t1": residual(), "t2": two_stems()}
    view = seen(*(observed(graph, trial=trial) for trial, graph in graphs.items()))
    for seed in range(20):
        choice = make().choose(view, rng(seed))
        assert choice.graphs == generations(graphs[choice.parent], choice.morphisms)
        assert choice.child is choice.graphs[-1]
        assert choice.prediction["parent_accuracy"] == 0.5


@pytest.mark.parametrize(
    "searcher", [SEARCHERS["guided"](), *(GreedySearcher(share) for share in (0.0, 0.3, 1.0))]
)
def test_no_graph_is_proposed_twice(searcher: Searcher) -> None:
    first = residual()
    choices = search(searcher, seen(observed(first)), 25)
    assert len({choice.child.hash for choice in choices} | {first.hash}) == 26


def test_children_are_found_once_each_until_one_is_repeated_and_says_so() -> None:
    graph = two_stems()
    generator = rng()
    found: set[str] = set()
    while True:
        choice = BEST_ONLY.choose(seen(observed(graph), known=found), generator)
        if "repeated" in choice.prediction:
            break
        assert choice.child.hash not in found
        found.add(choice.child.hash)
    assert choice.child.hash in found
    assert found <= _children(graph)
    assert len(found) >= 0.8 * len(_children(graph))


def test_where_all_neighbours_are_used_up_another_parent_is_grown() -> None:
    small, large = two_stems(), residual()
    view = seen(
        observed(small, trial="best", value=0.9),
        *(observed(small, trial=f"same-{number}", value=0.8) for number in range(6)),
        observed(large, trial="other", value=0.1),
        known=_children(small),
    )
    choices = [BEST_ONLY.choose(view, rng(seed)) for seed in range(20)]
    assert {c.parent for c in choices if "repeated" not in c.prediction} == {"other"}
    assert sum("repeated" not in c.prediction for c in choices) >= 18


@cache
def _children(graph: Graph) -> set[str]:
    return {
        kind.sample(graph, rng(seed)).child(graph).hash
        for kind in MORPHISMS.values()
        for seed in range(400)
    }


def test_all_kinds_are_used_evenly() -> None:
    choices = search(GreedySearcher(random_parent_probability=0.3), seen(observed(residual())), 40)
    kinds = Counter(step.kind for choice in choices for step in choice.morphisms)
    assert set(kinds) == set(MORPHISMS)
    assert max(kinds.values()) - min(kinds.values()) <= 2


@pytest.mark.parametrize("kind", sorted(MORPHISMS))
def test_the_kind_proposed_least_comes_next(kind: str) -> None:
    kinds = Counter({other: 5 for other in MORPHISMS if other != kind})
    for seed in range(5):
        view = seen(observed(residual()), kinds=kinds)
        (step,) = GreedySearcher(random_parent_probability=0.3).choose(view, rng(seed)).morphisms
        assert step.kind == kind


def kernels(graph: Graph) -> int:
    """Return what stands for the memory that a graph needs: sums of its kernels' sizes."""
    return sum(node.layer.kernel for node in graph.nodes if isinstance(node.layer, Conv2D))


def tight(graph: Graph) -> Bounds:
    """Return bounds that just allow ``graph``."""
    return Bounds(
        graph.parameter_count,
        count(graph).forward,
        graph.depth,
        1.0,
        lambda g: kernels(g) <= kernels(graph),
    )


@every_searcher
def test_bounds_are_kept(make: Callable[[], Searcher]) -> None:
    graph = residual()
    at_first = tight(graph)
    bounds = Bounds(
        int(1.5 * at_first.parameters),
        int(1.5 * at_first.forward_operations),
        at_first.depth + 3,
        1.3,
        lambda g: kernels(g) <= kernels(graph) + 6,
    )
    graphs = {"t1": graph}
    for number, choice in enumerate(search(make(), seen(observed(graph), bounds=bounds), 15)):
        assert choice.child.parameter_count <= bounds.parameters
        assert count(choice.child).forward <= bounds.forward_operations
        assert choice.child.depth <= bounds.depth
        assert kernels(choice.child) <= kernels(graph) + 6
        parent = graphs[choice.parent]
        assert count(choice.child).forward <= 1.3 * count(parent).forward
        graphs[f"g{number}"] = choice.child


@pytest.mark.parametrize(
    ("bound", "setting"),
    [
        ("parameters", "search.max_parameters"),
        ("depth", "search.max_depth"),
        ("forward_operations", "search.max_operations_ratio"),
        ("growth", "search.max_growth"),
        ("fits", "engine.memory_limit_gib"),
    ],
)
def test_a_graph_at_its_bounds_is_within_them(bound: str, setting: str) -> None:
    graph = residual()
    bounds = tight(graph)
    assert bounds.broken(graph, graph) is None
    below = {"growth": 1.0 - 1e-9, "fits": lambda g: kernels(g) < kernels(graph)}
    lower: dict[str, Any] = {bound: below.get(bound) or getattr(bounds, bound) - 1}
    assert replace(bounds, **lower).broken(graph, graph) == setting


@every_searcher
def test_bounds_that_allow_nothing_are_said_to_be_the_reason(make: Callable[[], Searcher]) -> None:
    view = seen(observed(residual()), bounds=replace(WIDE, depth=1))
    message = r"no candidate among (\d+) graphs grown from 1 parents.*search\.max_depth \((\d+)\)"
    with pytest.raises(SearchSpaceExhaustedError) as caught:
        make().choose(view, rng())
    said = re.search(message, str(caught.value))
    assert said is not None, caught.value
    made, out_of_bounds = map(int, said.groups())
    assert made == out_of_bounds > 0  # Counted: every graph that was made was kept out.


@every_searcher
def test_a_parent_with_no_place_for_any_morphism_is_exhausted(make: Callable[[], Searcher]) -> None:
    with pytest.raises(SearchSpaceExhaustedError, match="no candidate"):
        make().choose(seen(observed(plain())), rng())


@every_searcher
def test_without_a_parent_that_can_grow_nothing_is_proposed(make: Callable[[], Searcher]) -> None:
    searcher = make()
    for view in (seen(), seen(observed(residual(), can_grow=False))):
        with pytest.raises(SearchSpaceExhaustedError, match="no trained graph with kept weights"):
            searcher.choose(view, rng())


def test_the_best_parent_that_can_grow_is_grown() -> None:
    view = seen(
        observed(residual(), 0.6, trial="good"),
        observed(two_stems(), 0.9, trial="best, but its weights are gone", can_grow=False),
        observed(two_stems(), 0.4, trial="bad"),
    )
    for seed in range(20):
        assert BEST_ONLY.choose(view, rng(seed)).parent == "good"


def test_exploration_grows_others_too() -> None:
    view = seen(observed(residual(), 0.9, trial="good"), observed(two_stems(), 0.4, trial="bad"))
    searcher = GreedySearcher(random_parent_probability=0.5)
    parents = Counter(searcher.choose(view, rng(seed)).parent for seed in range(200))
    assert 20 < parents["bad"] < 80  # A half of a half, 50 of 200, is expected.


@every_searcher
def test_when_the_best_is_used_up_others_are_grown(make: Callable[[], Searcher]) -> None:
    view = seen(observed(plain(), 0.9, trial="used up"), observed(residual(), 0.1, trial="other"))
    assert make().choose(view, rng()).parent == "other"


@every_searcher
def test_the_generator_alone_decides(make: Callable[[], Searcher]) -> None:
    view = seen(observed(residual(), 0.5), observed(two_stems(), 0.4, trial="t2"))
    one, same, other = (search(make(), view, 10, seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other
