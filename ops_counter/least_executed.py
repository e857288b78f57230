"""The least that is executed of what is counted: what a rate is held against a machine's peak by.

A count is by definition: taps of a kernel that lie on padding count, and so does an update for each
sample. An implementation may leave out the former and does the latter once a batch.
docs/decisions/plausibility.md has the list.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from aiperf_hpc.graph import Conv2D, Conv3D, Graph, Shape
from aiperf_hpc.ops_counter.count import count


class LeastOperations(NamedTuple):
    """Operations of one sample that cannot be left out, by convolutions as they are defined."""

    training: int
    forward: int


def least_executed(graph: Graph) -> LeastOperations:
    """Return what is left of a graph's count without padding's taps and updates.

    Raises:
        CountError: a layer has no formula.
    """
    layers, shapes = count(graph).layers, graph.shapes
    training = forward = Fraction(0)
    for node in graph.nodes:
        operations, share = layers[node.name].operations, Fraction(1)
        if isinstance(node.layer, Conv2D | Conv3D):
            share = share_inside(node.layer, shapes[node.inputs[0]])
        forward += share * operations.forward
        training += share * (operations.forward + operations.backward - operations.update)
    return LeastOperations(math.floor(training), math.floor(forward))


def share_inside(layer: Conv2D | Conv3D, shape: Shape) -> Fraction:
    """Return the part of a convolution's taps that lie inside of what it reads.

    37/49 an axis for a kernel of 7 on 7 places, squared for an image: 0.57.
    """
    share = Fraction(1)
    window = layer.window
    before, _ = window.padding
    for size in shape[:-1]:
        (places,) = window.slid_over((size,))
        starts = (place * window.stride - before for place in range(places))
        inside = sum(min(start + window.kernel, size) - max(start, 0) for start in starts)
        share *= Fraction(inside, places * window.kernel)
    return share
