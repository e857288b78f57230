"""What PyTorch's own counter sees when the graph is really executed, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.support.networks import SMALL, THIN, flat_images, random_chain, volumes
from tests.support.torch_counts import counted, executed

from aiperf_hpc.graph import Conv2D, Graph
from aiperf_hpc.morphism.operators.morphisms import MORPHISMS, grow
from aiperf_hpc.morphism.resnet import resnet50


def test_resnet50_at_224() -> None:
    graph = resnet50()
    assert executed(graph) == 22_911_811_584
    assert counted(graph) == 22_911_811_584


@pytest.mark.parametrize("make", [volumes, flat_images])
def test_volumes_and_flat_images(make: Callable[[], Graph]) -> None:
    graph = make()
    assert executed(graph) == counted(graph)


def test_counts_are_of_one_sample() -> None:
    graph = SMALL[0]()
    assert executed(graph, samples=3) == 3 * counted(graph)


@pytest.mark.parametrize("seed", range(3))
def test_random_morphs(seed: int) -> None:
    """20 in each of 3: 12 of small residual networks and 8 of thin ResNet-50s."""
    rng = np.random.default_rng(seed)
    kinds: set[str] = set()
    strides: set[int] = set()
    for number in range(20):
        family = SMALL if number < 12 else THIN
        graph = family[number % 2]()
        chain = random_chain(graph, int(rng.integers(1, 9)), rng)
        graph = grow(graph, chain)
        kinds |= {morphism.kind for morphism in chain}
        strides |= {n.layer.stride for n in graph.nodes if isinstance(n.layer, Conv2D)}
        assert executed(graph) == counted(graph)
    assert kinds == set(MORPHISMS)
    assert strides >= {1, 2, 3}
