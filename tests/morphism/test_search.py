from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from aiperf_hpc.graph import Conv2D, Graph, Input, Node
from aiperf_hpc.morphism.morphs import MORPHISMS
from aiperf_hpc.morphism.search import (
    Bounds,
    Choice,
    GreedySearcher,
    Observation,
    SearchSpaceExhaustedError,
    View,
)
from aiperf_hpc.ops_counter.count import count

from .networks import residual, two_stems

WIDE = Bounds(parameters=10**9, forward_operations=10**15)


def seen(
    *seen: tuple[Observation, Graph],
    bounds: Bounds = WIDE,
    known: Iterable[str] = (),
    kinds: Counter[str] | None = None,
) -> View:
    graphs = {observation.trial: graph for observation, graph in seen}
    hashes = frozenset(known) | {graph.hash for graph in graphs.values()}
    kinds = Counter() if kinds is None else kinds
    return View([o for o, _ in seen], graphs.__getitem__, hashes, kinds, bounds)


def observed(
    graph: Graph, accuracy: float = 0.5, *, trial: str = "t1", can_grow: bool = True
) -> tuple[Observation, Graph]:
    return Observation(trial, accuracy, can_grow), graph


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def grow(searcher: GreedySearcher, view: View, steps: int, seed: int = 0) -> list[Choice]:
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
            kinds=view.kinds + Counter([choice.morphism.kind]),
        )
    return choices


def test_a_choice_is_the_morphisms_child_of_its_parent() -> None:
    graphs = {"t1": residual(), "t2": two_stems()}
    view = seen(*(observed(graph, trial=trial) for trial, graph in graphs.items()))
    for seed in range(20):
        choice = GreedySearcher(exploration=1.0).choose(view, rng(seed))
        assert choice.child == choice.morphism.child(graphs[choice.parent])
        assert choice.belief == {"parent_accuracy": 0.5}


@pytest.mark.parametrize("exploration", [0.0, 0.3, 1.0])
def test_no_graph_is_proposed_twice(exploration: float) -> None:
    first = residual()
    choices = grow(GreedySearcher(exploration), seen(observed(first)), 40)
    assert len({choice.child.hash for choice in choices} | {first.hash}) == 41


def test_children_are_found_once_each_until_one_is_repeated_and_says_so() -> None:
    graph = two_stems()
    searcher, generator = GreedySearcher(exploration=0.0), rng()
    found: set[str] = set()
    while True:
        choice = searcher.choose(seen(observed(graph), known=found), generator)
        if "repeated" in choice.belief:
            break
        assert choice.child.hash not in found
        found.add(choice.child.hash)
    assert choice.child.hash in found
    assert found <= _children(graph)
    assert len(found) >= 0.8 * len(_children(graph))


def test_where_all_neighbours_are_used_up_another_parent_is_grown() -> None:
    small, large = two_stems(), residual()
    view = seen(
        observed(small, trial="best", accuracy=0.9),
        *(observed(small, trial=f"same-{number}", accuracy=0.8) for number in range(6)),
        observed(large, trial="other", accuracy=0.1),
        known=_children(small),
    )
    choices = [GreedySearcher(exploration=0.0).choose(view, rng(seed)) for seed in range(20)]
    assert {c.parent for c in choices if "repeated" not in c.belief} == {"other"}
    assert sum("repeated" not in c.belief for c in choices) >= 18


def _children(graph: Graph) -> set[str]:
    return {
        kind.sample(graph, rng(seed)).child(graph).hash
        for kind in MORPHISMS.values()
        for seed in range(400)
    }


def test_all_kinds_are_used_evenly() -> None:
    choices = grow(GreedySearcher(exploration=0.3), seen(observed(residual())), 40)
    kinds = Counter(choice.morphism.kind for choice in choices)
    assert set(kinds) == set(MORPHISMS)
    assert max(kinds.values()) - min(kinds.values()) <= 2


@pytest.mark.parametrize("kind", sorted(MORPHISMS))
def test_the_kind_proposed_least_comes_next(kind: str) -> None:
    kinds = Counter({other: 5 for other in MORPHISMS if other != kind})
    for seed in range(5):
        view = seen(observed(residual()), kinds=kinds)
        assert GreedySearcher(exploration=0.3).choose(view, rng(seed)).morphism.kind == kind


def test_bounds_are_kept() -> None:
    graph = residual()
    bounds = Bounds(int(1.3 * graph.parameter_count), int(1.3 * count(graph).forward))
    searcher, view = GreedySearcher(exploration=0.3), seen(observed(graph), bounds=bounds)
    for choice in grow(searcher, view, 15):
        assert choice.child.parameter_count <= bounds.parameters
        assert count(choice.child).forward <= bounds.forward_operations


def test_a_graph_at_its_bounds_is_within_them() -> None:
    graph = residual()
    exactly = Bounds(graph.parameter_count, count(graph).forward)
    assert exactly.allow(graph)
    assert not replace(exactly, parameters=exactly.parameters - 1).allow(graph)
    assert not replace(exactly, forward_operations=exactly.forward_operations - 1).allow(graph)


@pytest.mark.parametrize(
    "bounds", [replace(WIDE, parameters=1), replace(WIDE, forward_operations=1)]
)
def test_bounds_that_allow_nothing_are_said_to_be_the_reason(bounds: Bounds) -> None:
    view = seen(observed(residual()), bounds=bounds)
    message = r"no candidate in 8 attempts from 1 parents.*search\.max_parameters"
    with pytest.raises(SearchSpaceExhaustedError, match=message):
        GreedySearcher(exploration=0.0, attempts=8).choose(view, rng())


def test_a_parent_with_no_place_for_any_morphism_is_exhausted() -> None:
    graph = Graph((Node("image", Input((4, 4, 3))), Node("conv", Conv2D(2, 7), ("image",))))
    with pytest.raises(SearchSpaceExhaustedError, match="no candidate"):
        GreedySearcher(exploration=0.0, attempts=4).choose(seen(observed(graph)), rng())


def test_without_a_parent_that_can_grow_nothing_is_proposed() -> None:
    searcher = GreedySearcher(exploration=0.3)
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
        assert GreedySearcher(exploration=0.0).choose(view, rng(seed)).parent == "good"


def test_exploration_grows_others_too() -> None:
    view = seen(observed(residual(), 0.9, trial="good"), observed(two_stems(), 0.4, trial="bad"))
    parents = Counter(
        GreedySearcher(exploration=0.5).choose(view, rng(seed)).parent for seed in range(200)
    )
    assert 20 < parents["bad"] < 80  # A half of a half, 50 of 200, is expected.


def test_when_the_best_is_used_up_others_are_grown() -> None:
    alone = Graph((Node("image", Input((4, 4, 3))), Node("conv", Conv2D(2, 7), ("image",))))
    view = seen(observed(alone, 0.9, trial="used up"), observed(residual(), 0.1, trial="other"))
    assert GreedySearcher(exploration=0.0).choose(view, rng()).parent == "other"


def test_the_generator_alone_decides() -> None:
    view = seen(observed(residual(), 0.5), observed(two_stems(), 0.4, trial="t2"))
    searcher = GreedySearcher(exploration=0.5)
    one, same, other = (grow(searcher, view, 10, seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other
