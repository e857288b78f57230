from __future__ import annotations

import numpy as np
import pytest
from tests.support.networks import residual, rng, trained_weights, two_stems

from aiperf_hpc.graph import Conv2D
from aiperf_hpc.morphism.operators.grow import grow_with_weights
from aiperf_hpc.morphism.operators.morphisms import KernelSize


@pytest.mark.parametrize("name", ["one_conv_a", "two_shortcut"])
def test_kernels_grow_from_1_to_3_to_5_to_7_around_their_middle(name: str) -> None:
    graph = residual()
    weights = trained_weights(graph, rng())
    before = weights[f"{name}/kernel"]
    for size in (3, 5, 7):
        graph, weights = grow_with_weights(graph, weights, [KernelSize(name, size)], rng())
        kernel = weights[f"{name}/kernel"]
        assert kernel.shape == (size, size, *before.shape[2:])
        np.testing.assert_array_equal(kernel[size // 2, size // 2], before[0, 0])
        assert np.count_nonzero(kernel) == np.count_nonzero(before)
    assert graph.shapes == residual().shapes


def test_kernels_may_grow_by_more_than_one_step() -> None:
    assert KernelSize("one_conv_a", 7).child(residual()).by_name["one_conv_a"].layer == Conv2D(5, 7)


def test_the_largest_kernels_are_not_drawn() -> None:
    graph = two_stems()
    for name in ("left_conv", "right_conv", "third_conv", "loop_conv"):
        graph = KernelSize(name, 7).child(graph)
    assert {KernelSize.sample(graph, rng(seed)) for seed in range(10)} == {
        KernelSize("down_conv", 5)
    }
