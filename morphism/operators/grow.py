"""Growth of a graph and its weights by morphisms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.base import Morphism, require
from aiperf_hpc.morphism.operators.morphisms import KernelSize
from aiperf_hpc.morphism.weights.weight_file import Weights


def generations(graph: Graph, morphisms: Iterable[Morphism]) -> tuple[Graph, ...]:
    """Return ``graph`` and the intermediate graphs after each of ``morphisms``.

    Raises:
        MorphismError: a morphism does not apply.
    """
    return tuple(accumulate(morphisms, lambda parent, step: step.child(parent), initial=graph))


def grow(graph: Graph, morphisms: Iterable[Morphism]) -> Graph:
    """Return the graph after all ``morphisms``, in order. Raises as ``generations``."""
    return generations(graph, morphisms)[-1]


def inherit(
    graphs: Sequence[Graph],
    weights: Weights,
    morphisms: Sequence[Morphism],
    rng: np.random.Generator,
    noise: float = 0.0,
) -> Weights:
    """Return the weights of the last of ``graphs``.

    Args:
        graphs: the parent, and the graph after each of ``morphisms``.
        weights: weights of the parent.
        morphisms: morphisms from the parent to the child.
        rng: source of all random choices.
        noise: see ``Morphism.weights``.
    """
    for graph, morphism in zip(graphs[:-1], morphisms, strict=True):
        weights = morphism.weights(graph, weights, rng, noise)
    return weights


def grow_with_weights(
    graph: Graph,
    weights: Weights,
    morphisms: Sequence[Morphism],
    rng: np.random.Generator,
    noise: float = 0.0,
) -> tuple[Graph, Weights]:
    """Return graph and weights after all ``morphisms``: ``grow`` and ``inherit`` in one."""
    graphs = generations(graph, morphisms)
    return graphs[-1], inherit(graphs, weights, morphisms, rng, noise)


def inserted_spatial_convs(graph: Graph) -> dict[str, int]:
    """Return the inserted convolutions with kernels larger than 1, with their sizes."""
    return {
        node.name: node.layer.window.kernel
        for node in graph.nodes
        if node.inserted and node.layer.growable_kernel and node.layer.window.kernel > 1
    }


def resize_inserted(graph: Graph, kernel: int) -> tuple[KernelSize, ...]:
    """Return the morphisms that give every inserted spatial convolution the size ``kernel``.

    Raises:
        MorphismError: one is already larger; a kernel cannot shrink without changing its function.
    """
    sizes = inserted_spatial_convs(graph)
    larger = [name for name, size in sizes.items() if size > kernel]
    require(not larger, f"kernel: {larger} have a larger kernel than {kernel} already")
    return tuple(KernelSize(name, kernel) for name, size in sizes.items() if size < kernel)
