"""The least that is executed of what is counted: what a rate is held against a machine's peak by.

A count is by definition: taps of a kernel that lie on padding count, and so does an update for each
sample. An implementation may leave out the former and does the latter once a batch.
docs/decisions/plausibility.md has the list.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from aiperf_hpc.graph import (
    ConvTranspose2D,
    Graph,
    Layer,
    ProposalHead,
    RegionConv2D,
    Shape,
    SlidingWindow,
)
from aiperf_hpc.graph.layers.regions import SHARED_KERNEL
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
    layers = count(graph).layers
    training = forward = Fraction(0)
    for node in graph.nodes:
        operations = layers[node.name].operations
        share = share_inside(node.layer, *graph.input_shapes(node.name))
        forward += share * operations.forward
        training += share * (operations.forward + operations.backward - operations.update)
    return LeastOperations(math.floor(training), math.floor(forward))


def share_inside(layer: Layer, *inputs: Shape) -> Fraction:
    """Return the part of a layer's operations forward whose taps lie inside of what it reads.

    37/49 an axis for a kernel of 7 on 7 places, squared for an image: 0.57. All of a layer that has
    no kernel.
    """
    match layer:
        case ProposalHead():
            return _of_proposals(layer, *inputs)
        case ConvTranspose2D():
            # Its taps lie in what it makes: those of a convolution that reads that.
            return _inside(SlidingWindow(layer.kernel, layer.stride), layer.output_shape(*inputs))
        case RegionConv2D():
            return _inside(layer.window, inputs[0][1:])
        case _ if "kernel" in layer.decayed:
            return _inside(layer.window, inputs[0])
    return Fraction(1)


def _inside(window: SlidingWindow, shape: Shape) -> Fraction:
    """Return the part of a window's taps on all axes of a shape but the channels'."""
    return math.prod((_of_axis(window, size) for size in shape[:-1]), start=Fraction(1))


def _of_axis(window: SlidingWindow, size: int) -> Fraction:
    (places,), (before, _) = window.slid_over((size,)), window.padding
    inside = 0
    for tap in range(window.kernel):
        offset = tap * window.dilation - before
        # Of place * stride + offset, those from 0 to below the size.
        first = max(0, -(offset // window.stride))
        last = min(places - 1, (size - 1 - offset) // window.stride)
        inside += max(0, last - first + 1)
    return Fraction(inside, places * window.kernel)


def _of_proposals(layer: ProposalHead, *levels: Shape) -> Fraction:
    """Return the share of its 3 x 3 convolution, on all levels, and of what reads that."""
    sizes = {name: math.prod(shape) for name, shape in layer.parameters(*levels).items()}
    places = [math.prod(level[:-1]) for level in levels]
    window = SlidingWindow(SHARED_KERNEL, 1)
    parts = (n * _inside(window, level) for n, level in zip(places, levels, strict=True))
    inside = sum(parts, start=Fraction(0))
    shared, behind = sizes["shared_kernel"], sizes["score_kernel"] + sizes["box_kernel"]
    return (shared * inside + behind * sum(places)) / (sum(places) * (shared + behind))
