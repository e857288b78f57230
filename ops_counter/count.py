"""Operation count of a graph: the sum over its layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from aiperf_hpc.errors import CountError
from aiperf_hpc.graph import Graph, Layer, Shape
from aiperf_hpc.grouping import grouped
from aiperf_hpc.ops_counter.layers import COSTS, LayerContext, Operations


@dataclass(frozen=True, slots=True)
class LayerCount:
    """The operations of one layer for one sample."""

    kind: str
    output: Shape
    parameters: int
    operations: Operations


@dataclass(frozen=True)
class GraphCount:
    """The operations of a graph for one sample."""

    layers: Mapping[str, LayerCount]
    """The count of each layer by the name of its node, in topological order."""

    @cached_property
    def forward(self) -> int:
        """Operations of one forward pass; what a validation sample is credited with."""
        return sum(layer.operations.forward for layer in self.layers.values())

    @cached_property
    def backward(self) -> int:
        """Operations of one backward pass, the update included."""
        return sum(layer.operations.backward for layer in self.layers.values())

    @cached_property
    def training(self) -> int:
        """Operations of one training sample: forward and backward."""
        return self.forward + self.backward

    def by_kind(self) -> dict[str, Operations]:
        """Return the sums for each kind of layer, in order of first appearance."""
        found = grouped((layer.kind, layer.operations) for layer in self.layers.values())
        return {kind: Operations(*map(sum, zip(*own, strict=True))) for kind, own in found.items()}


def count(graph: Graph) -> GraphCount:
    """Count the operations of ``graph`` for one sample.

    Raises:
        CountError: a layer has no formula; the message names the node.
    """
    shapes = graph.shapes
    layers: dict[str, LayerCount] = {}
    trained: set[str] = set()
    """Nodes whose outputs depend on trainable parameters."""
    for node in graph.nodes:
        layer = node.layer
        inputs = tuple([shapes[source] for source in node.inputs])
        below = not trained.isdisjoint(node.inputs)
        try:
            counted = _count_layer(node.kind, layer, inputs, below)
        except CountError as error:
            raise CountError(f"node '{node.name}': {error}") from None
        if below or counted.parameters:
            trained.add(node.name)
        layers[node.name] = counted
    return GraphCount(layers)


@lru_cache(maxsize=65_536)
def _count_layer(
    kind: str, layer: Layer, inputs: tuple[Shape, ...], input_gradient: bool
) -> LayerCount:
    """Count a layer in its context. Cached, because a network has few different layers.

    ``kind`` distinguishes layers without fields, which have equal hashes.
    """
    cost = COSTS.get(type(layer))
    if cost is None:
        raise CountError(
            f"no operation count for a layer of kind '{kind}'; add its formula to "
            "ops_counter/layers.py"
        )
    output = layer.output_shape(*inputs)
    parameters = sum(math.prod(shape) for shape in layer.parameters(*inputs).values())
    operations = cost.operations(LayerContext(layer, inputs, output, input_gradient))
    return LayerCount(kind, output, parameters, operations)
