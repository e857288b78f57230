from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.support.networks import SMALL, THIN, residual, rng, trained_weights, two_stems, volumes
from tests.support.torch_network import logits, to_tensors

from aiperf_hpc.errors import MorphismError
from aiperf_hpc.graph import Dense, Graph, Input, Node, Softmax
from aiperf_hpc.morphism.operators.morphisms import Wider
from aiperf_hpc.morphism.resnet import resnet50

MAKERS = [*SMALL, *THIN]


def test_wider_widens_all_that_is_tied_through_an_addition() -> None:
    child = Wider("stem_conv", 7).child(residual())
    assert [child.shapes[name][-1] for name in ("stem_conv", "one_conv_b", "one_relu")] == [7] * 3
    assert child.parameters["one_conv_a/kernel"] == (1, 1, 7, 5)
    assert child.parameters["two_conv/kernel"] == (5, 5, 7, 8)
    assert child.statistics["one_norm_b/variance"] == (7,)
    assert child.shapes["two_relu"] == residual().shapes["two_relu"]


def test_wider_widens_dense_layers_with_their_biases() -> None:
    child = Wider("hidden", 9).child(residual())
    assert child.parameters["hidden/kernel"] == (8, 9)
    assert child.parameters["hidden/bias"] == (9,)
    assert child.parameters["hidden_norm/gamma"] == (9,)
    assert child.parameters["logits/kernel"] == (9, 5)


@pytest.mark.parametrize("make", MAKERS)
def test_wider_draws_at_least_a_quarter_more(make: Callable[[], Graph]) -> None:
    graph = make()
    for seed in range(30):
        morphism = Wider.sample(graph, rng(seed))
        now = graph.shapes[morphism.producer][-1]
        assert 1.25 * now <= morphism.channels <= 2 * now + 1
        assert morphism.child(graph).shapes[morphism.producer][-1] == morphism.channels


def test_wider_by_exactly_a_quarter_is_allowed() -> None:
    graph = resnet50((32, 32, 3), 10, stem="cifar", base_width=4)
    assert Wider("s1b1_a_conv", 5).child(graph).shapes["s1b1_a_relu"][-1] == 5


def test_wider_copies_channels_and_splits_what_reads_them() -> None:
    graph = residual()
    weights = trained_weights(graph, rng(1))
    child = Wider("stem_conv", 9).weights(graph, weights, rng(2))
    old, new = weights["stem_conv/kernel"], child["stem_conv/kernel"]
    origin = [int(np.flatnonzero((new[..., [c]] == old).all(axis=(0, 1, 2)))[0]) for c in range(9)]
    assert origin[:4] == [0, 1, 2, 3]
    for name in ("stem_norm/gamma", "one_norm_b/mean", "one_norm_b/variance"):
        np.testing.assert_array_equal(child[name], weights[name][origin])
    for name in ("one_conv_a/kernel", "two_conv/kernel", "two_shortcut/kernel"):
        total = np.zeros_like(weights[name])
        for channel, source in enumerate(origin):
            total[..., source, :] += child[name][..., channel, :]
        np.testing.assert_allclose(total, weights[name], rtol=1e-6)
    # What both makes and reads these channels is copied along one axis and split along the other.
    looped = two_stems()
    loop = Wider("left_conv", 4).weights(looped, trained_weights(looped, rng(3)), rng(4))
    assert loop["loop_conv/kernel"].shape == (3, 3, 4, 4)


@pytest.mark.parametrize("producer", ["one", "two", "hidden"])
def test_wider_keeps_the_function_of_a_network_of_volumes(producer: str) -> None:
    graph = volumes()
    weights = trained_weights(graph, rng())
    morphism = Wider(producer, 2 * graph.shapes[producer][-1])
    child, grown = morphism.child(graph), morphism.weights(graph, weights, rng())
    assert child.shapes[producer][-1] == 2 * graph.shapes[producer][-1]
    inputs = torch.from_numpy(rng(1).standard_normal((3, 2, 7, 6, 9)))
    found, wanted = (
        logits(g, to_tensors(g, w, torch.float64), inputs)
        for g, w in ((child, grown), (graph, weights))
    )
    assert (found - wanted).abs().max() < 1e-6 * wanted.abs().max()


def test_dense_and_softmax_alone_can_widen_nothing() -> None:
    graph = Graph(
        (
            Node("samples", Input((4,))),
            Node("logits", Dense(3), ("samples",)),
            Node("probabilities", Softmax(), ("logits",)),
        )
    )
    with pytest.raises(MorphismError, match="no place"):
        Wider.sample(graph, rng())
