from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.support.networks import SMALL, cosmoflow, random_chain, residual, rng

from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.morphisms import MORPHISMS, Skip, Wider, grow
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.morphism.surrogate.graph_description import (
    SIZE,
    STAGE,
    STRUCTURE,
    WHOLE,
    describe,
    sketch,
)


def test_resnet50_in_numbers() -> None:
    """53 convolutions, the longest path of 49, 16 additions; 3x3 in each block, 7x7 at first."""
    vector = describe(resnet50())
    depth, _, kernels, joins, layers = vector[WHOLE]
    assert (depth, joins, layers) == (49, 16, 53)
    assert kernels == pytest.approx(16 * np.log2(3) + np.log2(7))
    by_stage = vector[STAGE].reshape(-1, 4)
    assert by_stage[:, 0].tolist() == [0, 1, 10, 13, 19, 10, 0, 0]
    assert by_stage[:, 3].tolist() == [0, 0, 3, 4, 6, 3, 0, 0]


def test_cosmoflow_in_numbers() -> None:
    """Five convolutions, each on a volume of half the side and of twice the channels, from 32."""
    vector = describe(cosmoflow())
    assert vector[WHOLE].tolist() == pytest.approx([5, -6, 5 * np.log2(3), 0, 5])
    assert vector[STAGE].reshape(-1, 4)[:, 0].tolist() == [1, 1, 1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("make", SMALL)
def test_names_and_order_are_no_part_of_a_description(make: Callable[[], Graph]) -> None:
    graph = make()
    renamed = Graph(
        tuple(
            replace(node, name=f"x{node.name}", inputs=tuple(f"x{i}" for i in node.inputs))
            for node in reversed(graph.nodes)
        )
    )
    assert describe(renamed).tolist() == describe(graph).tolist()


def test_a_description_is_the_same_in_every_process() -> None:
    code = (
        "from aiperf_hpc.morphism.surrogate.graph_description import describe\n"
        "from aiperf_hpc.morphism.resnet import resnet50\n"
        "print(describe(resnet50()).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == f"{describe(resnet50()).tolist()}\n"


def test_where_a_skip_leads_is_seen_in_the_structure_alone() -> None:
    graph = resnet50()
    one = Skip("s3b1_relu", "s3b3_relu").child(graph)
    other = Skip("s3b2_relu", "s3b5_relu").child(graph)
    first, second = describe(one), describe(other)
    assert first[: STRUCTURE.start].tolist() == second[: STRUCTURE.start].tolist()
    assert np.linalg.norm(first[STRUCTURE] - second[STRUCTURE]) > 1.0


def test_what_is_wider_by_little_is_nearer_than_what_is_wider_by_much() -> None:
    graph = resnet50()
    by = {w: describe(Wider("s2b1_b_conv", w).child(graph)) for w in (160, 192, 256)}
    own = describe(graph)
    distances = [np.linalg.norm(by[w] - own) for w in (160, 192, 256)]
    assert 0.0 < distances[0] < distances[1] < distances[2]
    # A width is no label: the structure is the same.
    assert by[256][STRUCTURE].tolist() == own[STRUCTURE].tolist()


@pytest.mark.parametrize("kind", sorted(MORPHISMS))
def test_a_sketch_is_the_childs_description_but_for_structure_and_depth(kind: str) -> None:
    graph, generator = resnet50((64, 64, 3), 10, base_width=8), rng()
    for _ in range(3):
        steps = [MORPHISMS[kind].sample(graph, generator) for _ in range(8)]
        drawn = sketch(graph, describe(graph), steps)
        assert drawn.shape == (8, SIZE)
        for step, vector in zip(steps, drawn, strict=True):
            child = describe(step.child(graph))
            np.testing.assert_allclose(vector[1 : STAGE.stop], child[1 : STAGE.stop], atol=1e-4)
            assert abs(vector[0] - child[0]) <= 1.0
        graph = steps[0].child(graph)


def test_different_graphs_have_different_descriptions() -> None:
    grown = (grow(residual(), random_chain(residual(), 3, rng(seed))) for seed in range(60))
    graphs = {graph.hash: graph for graph in grown}
    assert len(graphs) > 50
    distinct = {describe(graph).tobytes() for graph in graphs.values()}
    assert len(distinct) == len(graphs)
