"""Counting a graph: the walk over its nodes, and the sums."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from aiperf_hpc.errors import CountError
from aiperf_hpc.graph import Graph, Shape
from aiperf_hpc.ops_counter.table import TABLE, Operations, Site


@dataclass(frozen=True, slots=True)
class LayerCount:
    """The operations of one node for one sample."""

    name: str
    kind: str
    output: Shape
    parameters: int
    operations: Operations


@dataclass(frozen=True)
class GraphCount:
    """The operations of a graph for one sample."""

    layers: tuple[LayerCount, ...]

    @cached_property
    def forward(self) -> int:
        """Operations of one forward pass; what a validation sample is credited with."""
        return sum(layer.operations.forward for layer in self.layers)

    @cached_property
    def backward(self) -> int:
        """Operations of one backward pass, the update included."""
        return sum(layer.operations.backward for layer in self.layers)

    @cached_property
    def training(self) -> int:
        """Operations of one training sample: forward and backward."""
        return self.forward + self.backward

    def by_kind(self) -> dict[str, Operations]:
        """Return the sums for each kind of layer, in order of first appearance."""
        forward: Counter[str] = Counter()
        backward: Counter[str] = Counter()
        update: Counter[str] = Counter()
        for layer in self.layers:
            forward[layer.kind] += layer.operations.forward
            backward[layer.kind] += layer.operations.backward
            update[layer.kind] += layer.operations.update
        return {kind: Operations(forward[kind], backward[kind], update[kind]) for kind in forward}


def count(graph: Graph) -> GraphCount:
    """Count the operations of ``graph`` for one sample.

    Raises:
        CountError: a layer has no formula; the message names the node.
    """
    layers: list[LayerCount] = []
    trained: set[str] = set()
    """Nodes whose output depends on something that is trained."""
    for node in graph.nodes:
        formula = TABLE.get(type(node.layer))
        if formula is None:
            raise CountError(
                f"node '{node.name}': no operation count for a layer of kind "
                f"'{node.layer.kind}'; add its formula to ops_counter/table.py"
            )
        inputs = graph.input_shapes(node.name)
        below = any(source in trained for source in node.inputs)
        parameters = sum(math.prod(shape) for shape in node.layer.parameters(*inputs).values())
        if below or parameters:
            trained.add(node.name)
        site = Site(node.layer, inputs, graph.shapes[node.name], below)
        layers.append(
            LayerCount(node.name, node.layer.kind, site.output, parameters, formula(site))
        )
    return GraphCount(tuple(layers))
