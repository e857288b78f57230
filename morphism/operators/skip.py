"""The morphism that adds a connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np

from aiperf_hpc.errors import MorphismError
from aiperf_hpc.graph import Add, BatchNorm, Conv2D, Graph, Node, ReLU, Shape
from aiperf_hpc.morphism.operators.base import Morphism, node_of, require
from aiperf_hpc.morphism.operators.insertion import image_relus, insert_behind, unused_stem
from aiperf_hpc.morphism.weights.checkpoint import Weights
from aiperf_hpc.morphism.weights.moments import channel_moments, normalisation


@dataclass(frozen=True, slots=True)
class Skip(Morphism):
    """Add what the ReLU ``source`` gives to what the ReLU ``target``, behind it, gives.

    What is added starts at zero: through a 1x1 projection with zero weights where the shapes
    differ, through a normalisation with zero scale (one weight a channel) where they agree.
    """

    kind: ClassVar[str] = "skip"

    source: str
    target: str

    @classmethod
    def sample(cls, graph: Graph, rng: np.random.Generator) -> Self:
        relus, shapes = image_relus(graph), graph.shapes
        for place in rng.permutation(len(relus)):
            target = relus[place]
            for source in rng.permutation(place):
                name = relus[source]
                if _is_before(graph, name, target) and _stride(shapes[name], shapes[target]):
                    return cls(name, target)
        raise MorphismError("skip: no ReLU has another one before it")

    def child(self, graph: Graph) -> Graph:
        source, target = node_of(graph, self.source, ReLU), node_of(graph, self.target, ReLU)
        require(
            _is_before(graph, source.name, target.name),
            f"skip: '{source.name}' is not before '{target.name}'",
        )
        shapes = graph.shapes[source.name], graph.shapes[target.name]
        stride = _stride(*shapes)
        if stride is None:
            raise MorphismError(f"skip: no stride takes {shapes[0]} to {shapes[1]}")
        branch, total = self._names(graph)
        layer = BatchNorm() if self._scales(graph) else Conv2D(shapes[1][-1], 1, stride)
        block = (
            Node(branch, layer, (source.name,), inserted=True),
            Node(total, Add(), (target.name, branch), inserted=True),
        )
        return Graph(insert_behind(graph, target.name, block))

    def _inherited(self, graph: Graph, weights: Weights, rng: np.random.Generator) -> Weights:
        branch, _ = self._names(graph)
        if self._scales(graph):
            moments = channel_moments(graph, weights, self.source)
            return {**weights, **normalisation(branch, moments, scale=0.0)}
        shape = (1, 1, graph.shapes[self.source][-1], graph.shapes[self.target][-1])
        return {**weights, f"{branch}/kernel": np.zeros(shape, np.float32)}

    def _scales(self, graph: Graph) -> bool:
        return graph.shapes[self.source] == graph.shapes[self.target]

    def _names(self, graph: Graph) -> tuple[str, str]:
        stem = unused_stem(graph, f"{self.target}_skip", "_branch", "_add")
        return f"{stem}_branch", f"{stem}_add"


def _is_before(graph: Graph, source: str, target: str) -> bool:
    """Return whether a path leads from ``source`` to ``target``."""
    bits = _paths(graph)
    return source != target and bool(bits[target][1] & bits[source][0])


@lru_cache(maxsize=64)
def _paths(graph: Graph) -> Mapping[str, tuple[int, int]]:
    """Return a bit for each node, and those of all nodes that lead to it and of itself."""
    bits: dict[str, tuple[int, int]] = {}
    for number, node in enumerate(graph.nodes):
        leading = own = 1 << number
        for source in node.inputs:
            leading |= bits[source][1]
        bits[node.name] = own, leading
    return bits


@lru_cache(maxsize=1024)
def _stride(source: Shape, target: Shape) -> int | None:
    """Return the stride of a 1x1 convolution that takes one image size to the other."""
    for stride in range(1, max(source[:2]) + 1):
        if all(-(-source[axis] // stride) == target[axis] for axis in (0, 1)):
            return stride
    return None
