"""Descriptions of graphs as vectors, whose distance measures the similarity of graphs.

A description has three parts, each with its own length scale in the surrogate:

- ``whole``: depth, and sums over all layers;
- ``stages``: the same sums by image size, which distinguish layers of different stages;
- ``structure``: the connections of layers, by Weisfeiler-Lehman subtree features (Shervashidze et
  al. 2011; for architectures NAS-BOWL, Ru et al. 2021). Each node's label is refined twice by its
  neighbors' labels, and the labels are counted. The number of labels is unbounded, so each is
  hashed to one of a fixed number of counters with a sign (feature hashing, Weinberger et al. 2009),
  which preserves inner products in expectation. Widths are not part of labels, because labels are
  only equal or different, while 80 channels are closer to 64 than to 512.

Kernels that are positive definite in Euclidean distance are valid on these vectors.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.errors import MorphismError
from aiperf_hpc.graph import ChannelRole, Graph, Shape
from aiperf_hpc.morphism.operators.morphisms import Deeper, KernelSize, Morphism, Skip, Wider
from aiperf_hpc.morphism.weights.channels import channel_groups

Vector = NDArray[np.float32]

STAGES = 8
"""Number of distinguished image sizes, each half the previous; smaller ones count as the last."""
REFINEMENTS = 2
COUNTERS = 256
"""Number of counters of each refinement for the hashes of neighborhoods."""

_LAYERS, _WIDTH, _KERNEL, _JOINS = range(4)
WHOLE = slice(0, 5)
STAGE = slice(WHOLE.stop, WHOLE.stop + 4 * STAGES)
STRUCTURE = slice(STAGE.stop, STAGE.stop + REFINEMENTS * COUNTERS)
PARTS = {"whole": WHOLE, "stages": STAGE, "structure": STRUCTURE}
SIZE = STRUCTURE.stop

_MEAN_WIDTH_SCALE = 6.0
"""Factor of the mean log2 of width: half an octave weighs as much as three layers."""


def describe(graph: Graph) -> Vector:
    """Return the description of ``graph``, (SIZE,).

    ``whole`` is depth, mean log2 of width, sum of log2 of kernel sizes, additional branches that
    are added, and convolutions; ``stages`` has for each image size the number of convolutions,
    their sums of log2 of width and of kernel size, and the branches. Widths are taken relative to
    64 channels that double where the image halves, as in ResNet.
    """
    shapes = graph.shapes
    largest = _pixels(shapes[graph.nodes[0].name])
    stands_for: dict[str, int] = {}
    sources: list[list[int]] = []
    readers: list[list[int]] = []
    labels: list[int] = []
    depth: list[int] = []
    stages = [[0.0] * 4 for _ in range(STAGES)]
    for node in graph.nodes:
        name, layer = node.name, node.layer
        if layer.follower:  # A third of the remainder.
            stands_for[name] = stands_for[node.inputs[0]]
            continue
        number = stands_for[name] = len(labels)
        read = [stands_for[source] for source in node.inputs]
        for source in read:
            readers[source].append(number)
        sources.append(read)
        readers.append([])
        stage = _stage(largest, _pixels(shapes[name]), len(shapes[name]) - 1)
        below = max([depth[source] for source in read], default=0)
        if layer.channel_role is ChannelRole.PRODUCES and len(shapes[name]) > 1:
            kernel, stride = layer.window.kernel, layer.window.stride
            labels.append(_label(node.kind, kernel, stride, stage))
            depth.append(below + 1)
            counts = stages[stage]
            counts[_LAYERS] += 1.0
            counts[_WIDTH] += math.log2(shapes[name][-1]) - 6.0 - stage
            counts[_KERNEL] += math.log2(kernel)
        else:
            labels.append(_label(node.kind, len(read), 0, stage))
            depth.append(below)
            stages[stage][_JOINS] += max(0.0, len(read) - 1.0)
    vector = np.zeros(SIZE, np.float32)
    vector[STAGE] = np.ravel(stages)
    _sum_up(vector, max(depth))
    structure = [0.0] * (REFINEMENTS * COUNTERS)
    for refinement in range(REFINEMENTS):
        labels = [
            hash((label, _together(labels, above), _together(labels, below)))
            for label, above, below in zip(labels, sources, readers, strict=True)
        ]
        for value in labels:
            counter, sign = _counter(value)
            structure[refinement * COUNTERS + counter] += sign
    vector[STRUCTURE] = structure
    return vector


def _sum_up(vectors: Vector, depth: float | NDArray[np.float32]) -> None:
    """Compute the part ``whole`` of descriptions, (..., SIZE), from their stages."""
    stages = vectors[..., STAGE].reshape(*vectors.shape[:-1], STAGES, 4)
    layers, width, kernel, joins = np.moveaxis(stages.sum(axis=-2), -1, 0)
    mean_width = _MEAN_WIDTH_SCALE * width / np.maximum(1.0, layers)
    vectors[..., WHOLE] = np.stack([depth + 0.0 * layers, mean_width, kernel, joins, layers], -1)


def sketch(graph: Graph, vector: Vector, morphisms: Sequence[Morphism]) -> Vector:
    """Return approximate descriptions of children without growing them, (morphisms, SIZE).

    This is 20 times as fast as growing them. A child's structure is assumed to be its parent's, and
    its depth to increase by one for an inserted layer.

    Args:
        graph: graph of the parent.
        vector: description of the parent.
        morphisms: morphisms of the children.

    Raises:
        MorphismError: a kind of morphism is not supported.
    """
    shapes = graph.shapes
    largest = _pixels(shapes[graph.nodes[0].name])

    def stage(name: str) -> int:
        return _stage(largest, _pixels(shapes[name]), len(shapes[name]) - 1)

    def layer(at: str, kernel: int) -> Iterator[tuple[int, int, float]]:
        yield stage(at), _LAYERS, 1.0
        yield stage(at), _WIDTH, math.log2(shapes[at][-1]) - 6.0 - stage(at)
        yield stage(at), _KERNEL, math.log2(kernel)

    def additions(morphism: Morphism) -> Iterator[tuple[int, int, float]]:
        match morphism:
            case Deeper(after=after, kernel=kernel):
                yield from layer(after, kernel)
            case Skip(source=source, target=target):
                yield stage(target), _JOINS, 1.0
                if shapes[source] != shapes[target]:
                    yield from layer(target, 1)
            case KernelSize(conv=conv, kernel=kernel):
                now = graph.parameters[f"{conv}/kernel"][0]
                yield stage(conv), _KERNEL, math.log2(kernel / now)
            case Wider(producer=producer, channels=channels):
                octaves = math.log2(channels / shapes[producer][-1])
                for name in channel_groups(graph)[producer].producers:
                    yield stage(name), _WIDTH, octaves
            case _:
                raise MorphismError(f"no sketch of a morphism of kind '{morphism.kind}'")

    drawn = np.repeat(vector[None], len(morphisms), axis=0)
    for row, morphism in enumerate(morphisms):
        for at, what, more in additions(morphism):
            drawn[row, STAGE.start + 4 * at + what] += more
    longer = np.array([isinstance(morphism, Deeper) for morphism in morphisms], np.float32)
    _sum_up(drawn, vector[0] + longer)
    return drawn


def _together(labels: list[int], nodes: list[int]) -> tuple[int, ...]:
    """Return a label for a set of labels, independent of their order."""
    if len(nodes) == 1:
        return (labels[nodes[0]],)
    return tuple(sorted([labels[node] for node in nodes]))


def _pixels(shape: Shape) -> int:
    """Return the number of positions of an image or a volume; 0 for a vector."""
    return math.prod(shape[:-1]) if len(shape) > 1 else 0


@lru_cache(maxsize=1024)
def _stage(largest: int, pixels: int, axes: int) -> int:
    """Return the number of halvings of an image or volume; vectors count as the last stage."""
    if pixels == 0:
        return STAGES - 1
    return min(STAGES - 1, max(0, round(math.log2(largest / pixels) / axes)))


@lru_cache(maxsize=65_536)
def _label(kind: str, size: int, stride: int, stage: int) -> int:
    """Return a number for a kind of layer, equal in every process."""
    return zlib.crc32(f"{kind} {size} {stride} {stage}".encode())


@lru_cache(maxsize=1 << 18)
def _counter(label: int) -> tuple[int, float]:
    """Return the counter and the sign of a label, from its hash.

    Python's hashes of tuples of numbers are equal in every process, those of text are not.
    """
    digest = zlib.crc32(label.to_bytes(8, "little", signed=True))
    return digest % COUNTERS, 1.0 if digest & 0x8000_0000 else -1.0
