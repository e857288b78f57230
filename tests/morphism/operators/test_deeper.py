from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.support.networks import plain, residual, rng, trained_weights, two_stems

from aiperf_hpc.graph import BatchNorm, Conv2D, Graph, Node, ReLU
from aiperf_hpc.morphism.operators.grow import grow_with_weights
from aiperf_hpc.morphism.operators.morphisms import Deeper


def test_deeper_puts_its_block_between_a_relu_and_all_its_readers() -> None:
    graph = two_stems()
    child = Deeper("relu", 3).child(graph)
    new = ("relu_deep1_conv", "relu_deep1_norm", "relu_deep1_relu")
    assert child.by_name[new[0]] == Node(new[0], Conv2D(3, 3), ("relu",), inserted=True)
    assert child.by_name[new[1]] == Node(new[1], BatchNorm(), (new[0],), inserted=True)
    assert child.by_name[new[2]] == Node(new[2], ReLU(), (new[1],), inserted=True)
    assert child.consumers["relu"] == (new[0],)
    assert child.by_name["loop_add"].inputs == (new[2], "loop_norm", new[2])
    assert child.by_name["loop_conv"].inputs == (new[2],)
    assert child.depth == graph.depth + 1


def test_deeper_behind_one_relu_again_and_again_finds_new_names() -> None:
    graph = residual()
    for _ in range(3):
        graph = Deeper("one_relu", 1).child(graph)
    stems = [n.name for n in graph.nodes if n.inserted and isinstance(n.layer, Conv2D)]
    assert sorted(stems) == [f"one_relu_deep{n}_conv" for n in (1, 2, 3)]


def test_deeper_avoids_a_name_that_another_node_has() -> None:
    graph = residual()
    taken = Graph(
        tuple(
            replace(
                node,
                name="one_relu_deep1_norm" if node.name == "pool" else node.name,
                inputs=tuple("one_relu_deep1_norm" if i == "pool" else i for i in node.inputs),
            )
            for node in graph.nodes
        )
    )
    assert "one_relu_deep2_conv" in Deeper("one_relu", 1).child(taken).by_name


def test_deeper_behind_the_output_makes_a_new_output() -> None:
    graph = Graph((*plain().nodes, Node("relu", ReLU(), ("conv",))))
    assert Deeper("relu", 1).child(graph).output.name == "relu_deep1_relu"


def test_deeper_starts_as_the_identity_and_its_inverse_normalisation() -> None:
    graph = residual()
    weights = trained_weights(graph, rng())
    _, child = grow_with_weights(graph, weights, [Deeper("one_relu", 5)], rng())
    kernel = child["one_relu_deep1_conv/kernel"]
    np.testing.assert_array_equal(kernel[2, 2], np.eye(4, dtype=np.float32))
    assert np.count_nonzero(kernel) == 4
    mean, variance, gamma, beta = (
        child[f"one_relu_deep1_norm/{key}"] for key in ("mean", "variance", "gamma", "beta")
    )
    np.testing.assert_array_equal(beta, mean)
    np.testing.assert_allclose(gamma, np.sqrt(variance + 1e-5), rtol=1e-6)
    assert (mean > 0).all()  # Of what a ReLU gives.
