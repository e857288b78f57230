from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.networks import SMALL, random_chain, residual

from aiperf_hpc.errors import MorphismError
from aiperf_hpc.graph import (
    Add,
    BatchNorm,
    Conv2D,
    Dense,
    GlobalAveragePool2D,
    Graph,
    Input,
    Layer,
    Node,
    ReLU,
    Softmax,
)
from aiperf_hpc.morphism.operators.morphisms import Deeper, KernelSize, Morphism, Skip, Wider

SEEDS = st.integers(0, 2**32 - 1)


def renamed_and_shuffled(graph: Graph, rng: np.random.Generator) -> Graph:
    numbers = rng.permutation(len(graph.nodes))
    names = {node.name: f"n{number}" for node, number in zip(graph.nodes, numbers, strict=True)}
    nodes = [
        replace(node, name=names[node.name], inputs=tuple(names[i] for i in node.inputs))
        for node in graph.nodes
    ]
    return Graph(tuple(nodes[int(place)] for place in rng.permutation(len(nodes))))


def changed(graph: Graph, name: str, **fields: Any) -> Graph:  # noqa: ANN401 -- of a node
    return Graph(tuple(replace(n, **fields) if n.name == name else n for n in graph.nodes))


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, depth=st.integers(0, 6), which=st.sampled_from(SMALL))
def test_names_and_order_of_nodes_do_not_matter(
    seed: int, depth: int, which: Callable[[], Graph]
) -> None:
    rng = np.random.default_rng(seed)
    graph = which()
    for morphism in random_chain(graph, depth, rng):
        graph = morphism.child(graph)
    assert renamed_and_shuffled(graph, rng).hash == graph.hash


def test_the_order_of_what_is_added_does_not_matter() -> None:
    graph = residual()
    assert changed(graph, "one_add", inputs=("stem_pool", "one_norm_b")).hash == graph.hash


def test_provenance_does_not_matter() -> None:
    graph = residual()
    assert Graph(tuple(replace(n, inserted=True) for n in graph.nodes)).hash == graph.hash


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("two_conv", Conv2D(8, 3, 2)),
        ("two_conv", Conv2D(8, 5, 3)),
        ("one_conv_a", Conv2D(6, 1)),
        ("image", Input((1, 2, 3))),
    ],
)
def test_another_hyperparameter_is_another_hash(name: str, layer: Layer) -> None:
    graph = residual((1, 1, 3))  # On a 1 x 1 image every kernel and stride gives one shape.
    assert graph.by_name["two_conv"].layer == Conv2D(8, 5, 2)
    assert changed(graph, name, layer=layer).hash != graph.hash


def test_one_layer_read_twice_differs_from_two_equal_layers() -> None:
    image, sums = Node("image", Input((4, 4, 3))), Node("sum", Add(), ("r", "s"))
    a, b = Node("a", Conv2D(3, 3), ("image",)), Node("b", Conv2D(3, 3), ("image",))
    ends = (Node("r", ReLU(), ("a",)), sums)
    shared = Graph((image, a, *ends, Node("s", BatchNorm(), ("a",))))
    equal = Graph((image, a, b, *ends, Node("s", BatchNorm(), ("b",))))
    assert shared.hash != equal.hash


def test_two_equal_layers_read_by_others_are_told_apart_by_their_readers() -> None:
    """The same layers and the same number of edges, paired otherwise."""

    def graph(left: tuple[str, str], right: tuple[str, str]) -> Graph:
        return Graph(
            (
                Node("image", Input((4, 4, 3))),
                Node("a", Conv2D(3, 3), ("image",)),
                Node("b", Conv2D(3, 3), ("image",)),
                Node("left", Add(), left),
                Node("right", Add(), right),
                Node("sum", Add(), ("left", "right")),
            )
        )

    assert graph(("a", "a"), ("b", "b")).hash != graph(("a", "b"), ("a", "b")).hash


def test_descendants_have_one_hash_exactly_where_they_are_one_graph() -> None:
    """Three generations of a small network, those of one hash compared node by node."""
    from networkx import DiGraph  # type: ignore[import-untyped]
    from networkx.algorithms.isomorphism import DiGraphMatcher  # type: ignore[import-untyped]

    def as_networkx(graph: Graph) -> DiGraph:
        digraph = DiGraph()
        for node in graph.nodes:
            digraph.add_node(node.name, layer=repr(node.layer))
            digraph.add_edges_from((source, node.name) for source in node.inputs)
        return digraph

    first_of_hash = {PLAIN.hash: PLAIN}
    generation, twins = [PLAIN], 0
    for _ in range(3):
        new: list[Graph] = []
        for child in (child for parent in generation for child in _children(parent)):
            first = first_of_hash.get(child.hash)
            if first is None:
                first_of_hash[child.hash] = child
                new.append(child)
                continue
            twins += 1
            matcher = DiGraphMatcher(as_networkx(first), as_networkx(child), _layers_agree)
            assert matcher.is_isomorphic()
        generation = new
    assert len(first_of_hash) > 400
    assert twins > 400


def _layers_agree(one: dict[str, str], two: dict[str, str]) -> bool:
    return one["layer"] == two["layer"]


PLAIN = Graph(
    (
        Node("image", Input((4, 4, 2))),
        Node("conv_a", Conv2D(2, 1), ("image",)),
        Node("norm_a", BatchNorm(), ("conv_a",)),
        Node("relu_a", ReLU(), ("norm_a",)),
        Node("conv_b", Conv2D(2, 1), ("relu_a",)),
        Node("norm_b", BatchNorm(), ("conv_b",)),
        Node("relu_b", ReLU(), ("norm_b",)),
        Node("conv_c", Conv2D(2, 1), ("relu_b",)),
        Node("norm_c", BatchNorm(), ("conv_c",)),
        Node("add_c", Add(), ("norm_c", "relu_b")),
        Node("relu_c", ReLU(), ("add_c",)),
        Node("pool", GlobalAveragePool2D(), ("relu_c",)),
        Node("logits", Dense(2), ("pool",)),
        Node("probabilities", Softmax(), ("logits",)),
    )
)


def _children(graph: Graph) -> list[Graph]:
    relus = [n.name for n in graph.nodes if isinstance(n.layer, ReLU)]
    convs = [n.name for n in graph.nodes if isinstance(n.layer, Conv2D)]
    candidates: list[Morphism] = [Deeper(relu, 1) for relu in relus]
    candidates += [Skip(source, target) for source in relus for target in relus]
    candidates += [KernelSize(conv, 3) for conv in convs]
    candidates += [Wider(conv, 3) for conv in convs]
    children: list[Graph] = []
    for morphism in candidates:
        try:
            children.append(morphism.child(graph))
        except MorphismError:
            continue  # Not here.
    return children
