from __future__ import annotations

import pytest
from tests.support.networks import random_chain, residual, rng, sequential, trained_weights

from aiperf_hpc.errors import MorphismError
from aiperf_hpc.graph import Conv2D, Input, ReLU
from aiperf_hpc.morphism.operators.morphisms import (
    Deeper,
    KernelSize,
    Morphism,
    Skip,
    Wider,
    grow,
    grow_with_weights,
    inserted_spatial_convs,
    resize_inserted,
)
from aiperf_hpc.morphism.weights.weight_file import check_weights


def test_what_was_inserted_stays_marked_through_other_morphisms() -> None:
    graph = grow(
        residual(),
        [
            Deeper("one_relu", 1),
            Skip("stem_relu", "one_relu"),
            KernelSize("one_relu_deep1_conv", 3),
            KernelSize("one_conv_a", 3),
            Wider("one_relu_deep1_conv", 9),
            Wider("one_conv_a", 8),
        ],
    )
    assert {n.name for n in graph.nodes if n.inserted} == {
        "one_relu_deep1_conv", "one_relu_deep1_norm", "one_relu_deep1_relu",
        "one_relu_skip1_branch", "one_relu_skip1_add",
    }  # fmt: skip
    assert graph.shapes["one_relu_deep1_conv"][-1] == 9


def test_only_inserted_convolutions_larger_than_1x1_are_resized() -> None:
    graph = grow(
        residual(),
        [
            Deeper("one_relu", 3),
            Deeper("two_relu", 1),
            Skip("stem_relu", "two_relu"),
            KernelSize("two_relu_skip1_branch", 5),
            KernelSize("stem_conv", 5),
        ],
    )
    assert inserted_spatial_convs(graph) == {
        "one_relu_deep1_conv": 3,
        "two_relu_skip1_branch": 5,
    }
    assert resize_inserted(graph, 5) == (KernelSize("one_relu_deep1_conv", 5),)
    assert set(resize_inserted(graph, 7)) == {
        KernelSize("one_relu_deep1_conv", 7),
        KernelSize("two_relu_skip1_branch", 7),
    }
    assert set(inserted_spatial_convs(grow(graph, resize_inserted(graph, 7))).values()) == {7}
    with pytest.raises(MorphismError, match=r"\['two_relu_skip1_branch'\] have a larger kernel"):
        resize_inserted(graph, 3)
    assert inserted_spatial_convs(residual()) == {}
    assert resize_inserted(residual(), 3) == ()


def test_growing_with_and_without_weights_gives_one_graph() -> None:
    graph = residual()
    chain = random_chain(graph, 8, rng(5))
    grown, weights = grow_with_weights(graph, trained_weights(graph, rng()), chain, rng())
    assert grown == grow(graph, chain)
    check_weights(grown, weights)
    assert grow(graph, []) == graph


@pytest.mark.timeout(300)
def test_a_chain_of_hundreds_is_no_trouble() -> None:
    """Nor is the moments' way through the additions that it leaves."""
    relus = {name: ReLU() for name in ("first", "second", "third", "last")}
    graph = sequential(image=Input((2, 2, 1)), conv=Conv2D(1, 1), **relus)
    weights = trained_weights(graph, rng())
    for number in range(400):
        step: Morphism = Skip("first", "second") if number % 2 else Skip("first", "third")
        graph, weights = grow_with_weights(graph, weights, [step], rng())
    graph, weights = grow_with_weights(graph, weights, [Deeper("last", 1)], rng())
    check_weights(graph, weights)
