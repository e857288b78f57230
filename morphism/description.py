"""A graph in numbers, so that likeness of graphs is a distance between vectors.

Three parts, each with a length scale of its own in the surrogate:

- ``whole``: depth, and sums over all layers;
- ``stages``: the same by image size, so that the fifth layer of one stage is not the same as the
  fifth of another;
- ``structure``: how layers are connected, by Weisfeiler-Lehman subtree features (Shervashidze et
  al. 2011; for architectures NAS-BOWL, Ru et al. 2021). Each node's label is refined twice by its
  neighbours' labels; the labels are counted. There is no end of different labels, so each has a
  place among a fixed number of counters and a sign (feature hashing, Weinberger et al. 2009),
  which keeps inner products in expectation. A width is no label: a layer of 80 channels is
  closer to one of 64 than to one of 512, and labels are equal or not.

Any kernel that is positive definite in Euclidean distance is so on these vectors.
"""

from __future__ import annotations

import math
import zlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.errors import MorphismError
from aiperf_hpc.graph import Add, BatchNorm, Conv2D, Graph, Layer, ReLU, Shape
from aiperf_hpc.morphism.channels import channel_groups
from aiperf_hpc.morphism.morphs import Deeper, KernelSize, Morphism, Skip, Wider

Vector = NDArray[np.float32]

STAGES = 8
"""Image sizes that are told apart, each half the one before; smaller ones count as the last."""
REFINEMENTS = 2
COUNTERS = 256
"""Of each refinement."""

_LAYERS, _WIDTH, _KERNEL, _JOINS = range(4)
WHOLE = slice(0, 5)
STAGE = slice(WHOLE.stop, WHOLE.stop + 4 * STAGES)
STRUCTURE = slice(STAGE.stop, STAGE.stop + REFINEMENTS * COUNTERS)
PARTS = {"whole": WHOLE, "stages": STAGE, "structure": STRUCTURE}
SIZE = STRUCTURE.stop

_MEAN_WIDTH_SCALE = 6.0
"""A mean width half an octave larger weighs like three more layers."""


def describe(graph: Graph) -> Vector:
    """Return the description of ``graph``, (SIZE,).

    ``whole`` is depth, mean log2 of width, sum of log2 of kernel sizes, additional branches that
    are added, and convolutions; ``stages`` has for each image size the number of convolutions,
    their sums of log2 of width and of kernel size, and the branches. Widths are taken relative to
    64 channels that double where the image halves, as in ResNet.
    """
    shapes = graph.shapes
    largest = _pixels(shapes[graph.nodes[0].name])
    # A normalisation and an activation belong to the layer that they follow: a third of the nodes.
    stands_for: dict[str, str] = {}
    sources: dict[str, list[str]] = {}
    readers: dict[str, list[str]] = {}
    label: dict[str, int] = {}
    depth: dict[str, int] = {}
    stages = [[0.0] * 4 for _ in range(STAGES)]
    for node in graph.nodes:
        name, layer = node.name, node.layer
        if isinstance(layer, ReLU | BatchNorm):
            stands_for[name] = stands_for[node.inputs[0]]
            continue
        stands_for[name] = name
        read = sources[name] = [stands_for[source] for source in node.inputs]
        readers[name] = []
        for source in read:
            readers[source].append(name)
        shape = shapes[name]
        stage = _stage(largest, _pixels(shape))
        label[name] = _label(layer, stage)
        below = max((depth[source] for source in read), default=0)
        depth[name] = below
        if isinstance(layer, Conv2D):
            depth[name] += 1
            counts = stages[stage]
            counts[_LAYERS] += 1.0
            counts[_WIDTH] += math.log2(layer.channels) - 6.0 - stage
            counts[_KERNEL] += math.log2(layer.kernel)
        elif isinstance(layer, Add):
            stages[stage][_JOINS] += len(read) - 1.0
    vector = np.zeros(SIZE, np.float32)
    vector[STAGE] = np.ravel(stages)
    _sum_up(vector, max(depth.values()))
    structure = vector[STRUCTURE]
    for refinement in range(REFINEMENTS):
        label = {
            name: hash(
                (
                    own,
                    tuple(sorted([label[source] for source in sources[name]])),
                    tuple(sorted([label[reader] for reader in readers[name]])),
                )
            )
            for name, own in label.items()
        }
        for value in label.values():
            counter, sign = _counter(value)
            structure[refinement * COUNTERS + counter] += sign
    return vector


def _sum_up(vector: Vector, depth: float) -> None:
    """Fill in the whole, given its stages."""
    layers, width, kernel, joins = vector[STAGE].reshape(STAGES, 4).sum(axis=0)
    mean_width = _MEAN_WIDTH_SCALE * width / max(1.0, layers)
    vector[WHOLE] = depth, mean_width, kernel, joins, layers


def sketch(graph: Graph, vector: Vector, morphism: Morphism) -> Vector:
    """Return about what ``describe`` says of a child that is not made, (SIZE,).

    Ten times as fast as making it. The child's structure is taken as its parent's, and its path
    as one longer by an inserted layer.

    Args:
        graph: the parent.
        vector: its description.
        morphism: what makes the child.
    """
    drawn = vector.copy()
    stages = drawn[STAGE].reshape(STAGES, 4)
    depth = float(vector[WHOLE][0])
    shapes = graph.shapes
    largest = _pixels(shapes[graph.nodes[0].name])

    def add_layer(name: str, kernel: int) -> None:
        shape = shapes[name]
        stage = _stage(largest, _pixels(shape))
        stages[stage, :3] += 1.0, math.log2(shape[-1]) - 6.0 - stage, math.log2(kernel)

    match morphism:
        case Deeper(after=after, kernel=kernel):
            add_layer(after, kernel)
            depth += 1.0
        case Skip(source=source, target=target):
            stages[_stage(largest, _pixels(shapes[target])), _JOINS] += 1.0
            if shapes[source] != shapes[target]:
                add_layer(target, 1)
        case KernelSize(conv=conv, kernel=kernel):
            now = graph.parameters[f"{conv}/kernel"][0]
            stages[_stage(largest, _pixels(shapes[conv])), _KERNEL] += math.log2(kernel / now)
        case Wider(producer=producer, channels=channels):
            octaves = math.log2(channels / shapes[producer][-1])
            for name in channel_groups(graph)[producer].producers:
                stages[_stage(largest, _pixels(shapes[name])), _WIDTH] += octaves
        case _:
            raise MorphismError(f"no sketch of a morphism of kind '{morphism.kind}'")
    _sum_up(drawn, depth)
    return drawn


def _pixels(shape: Shape) -> int:
    return shape[0] * shape[1] if len(shape) == 3 else 0


@lru_cache(maxsize=1024)
def _stage(largest: int, pixels: int) -> int:
    """Return how often the image was halved; vectors count as the last stage."""
    if pixels == 0:
        return STAGES - 1
    return min(STAGES - 1, max(0, round(0.5 * math.log2(largest / pixels))))


@lru_cache(maxsize=65_536)
def _label(layer: Layer, stage: int) -> int:
    """Return a number of a kind of layer, the same in every process."""
    size = (layer.kernel, layer.stride) if isinstance(layer, Conv2D) else ()
    return zlib.crc32(repr((layer.kind, size, stage)).encode())


@lru_cache(maxsize=1 << 18)
def _counter(label: int) -> tuple[int, float]:
    """Return the place and the sign of a label: two parts of a hash of it.

    Hashes of tuples of numbers are the same in every process; those of text are not.
    """
    digest = zlib.crc32(label.to_bytes(8, "little", signed=True))
    return digest % COUNTERS, 1.0 if digest & 0x8000_0000 else -1.0
