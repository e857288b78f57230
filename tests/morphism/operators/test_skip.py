from __future__ import annotations

import pytest
from tests.support.networks import residual, rng, trained_weights, two_stems

from aiperf_hpc.graph import Add, BatchNorm, Conv2D, Graph, Input, Node, ReLU
from aiperf_hpc.morphism.operators.morphisms import Skip


def test_skip_between_equal_shapes_is_a_normalisation_of_scale_zero() -> None:
    graph = two_stems()
    morphism = Skip("relu", "loop_relu")
    child = morphism.child(graph)
    branch, total = "loop_relu_skip1_branch", "loop_relu_skip1_add"
    assert child.by_name[branch] == Node(branch, BatchNorm(), ("relu",), inserted=True)
    assert child.by_name[total] == Node(total, Add(), ("loop_relu", branch), inserted=True)
    assert child.by_name["down_conv"].inputs == (total,)
    assert child.consumers["loop_relu"] == (total,)
    weights = morphism.weights(graph, trained_weights(graph, rng()), rng())
    assert not weights[f"{branch}/gamma"].any()
    assert not weights[f"{branch}/beta"].any()
    assert weights[f"{branch}/variance"].all()


@pytest.mark.parametrize(
    ("source", "target", "layer"),
    [
        ("one_relu_a", "one_relu", Conv2D(4, 1, 1)),  # Other channels.
        ("one_relu", "two_relu", Conv2D(8, 1, 2)),  # Other channels and size.
        ("stem_relu", "one_relu", Conv2D(4, 1, 2)),  # Another size, across a max-pool.
        ("stem_relu", "two_relu", Conv2D(8, 1, 4)),  # 9 x 8 to 3 x 2.
    ],
)
def test_skip_between_other_shapes_is_a_strided_projection_of_zeros(
    source: str, target: str, layer: Conv2D
) -> None:
    graph = residual()
    morphism = Skip(source, target)
    branch = f"{target}_skip1_branch"
    assert morphism.child(graph).by_name[branch].layer == layer
    weights = morphism.weights(graph, trained_weights(graph, rng()), rng())
    assert not weights[f"{branch}/kernel"].any()


def test_skip_may_end_where_only_the_width_is_left_to_stride_over() -> None:
    graph = Graph(
        (
            Node("image", Input((2, 8, 3))),
            Node("first", ReLU(), ("image",)),
            Node("half", Conv2D(3, 3, 2), ("first",)),
            Node("conv", Conv2D(3, 3, 4), ("half",)),
            Node("second", ReLU(), ("conv",)),
        )
    )
    child = Skip("first", "second").child(graph)
    assert graph.shapes["second"] == (1, 1, 3)
    assert child.by_name["second_skip1_branch"].layer == Conv2D(3, 1, 8)


def test_skip_is_drawn_between_all_pairs_that_fit() -> None:
    graph = residual()
    drawn = {Skip.sample(graph, rng(seed)) for seed in range(200)}
    relus = ["stem_relu", "one_relu_a", "one_relu", "two_relu"]
    pairs = [(s, t) for place, t in enumerate(relus) for s in relus[:place]]
    assert {(skip.source, skip.target) for skip in drawn} == set(pairs)
