"""Synthetic landscapes: accuracy as a known function of a graph, with noise.

A graph is told by depth, widths, kernel sizes and skips, taken relative to the initial graph,
which is in the origin. Both landscapes are drawn by seed:

- ``smooth``: each image size has its own taste for more layers, wider ones, larger kernels and
  more skips. All of them saturate, and depth and width cost beyond that;
- ``narrow``: a peak somewhere in the whole graph's depth, mean width, kernels and skips, a
  morphism or two wide and some 10 to 20 morphisms away, and hardly a slope far from it.

They are not to be tuned to please a searcher. What they know of a graph is close to what the
surrogate's description says of it, so that they judge how a search uses what it can learn, and
not whether accuracy is learned as well; for that there are real trainings
(docs/decisions/search.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.graph import Add, Conv2D, Graph

NOISE = 0.004
"""Standard deviation of an observed accuracy."""
SIZES = 4
"""Image sizes that are told apart: that of ResNet's first stage and its halvings."""
_LAYERS, _WIDTH, _KERNEL, _SKIPS = range(4)

Traits = NDArray[np.float64]
"""(SIZES, 4): for each image size its convolutions, their mean log2 of width, the sum of their
log2 of kernel sizes, and the additional branches that are added."""


class Landscape(Protocol):
    """Accuracy as a function of a graph."""

    def value(self, graph: Graph) -> float:
        """Return the true accuracy, without noise."""
        ...


def traits(graph: Graph) -> Traits:
    """Return the features of a graph that landscapes use."""
    shapes = graph.shapes
    largest = shapes[graph.nodes[0].name][0]
    found = np.zeros((SIZES, 4))
    for node in graph.nodes:
        if isinstance(node.layer, Conv2D | Add):
            # The stem halves twice before the first stage.
            halvings = round(math.log2(largest / shapes[node.name][0])) - 2
            size = found[min(SIZES - 1, max(0, halvings))]
            if isinstance(node.layer, Add):
                size[_SKIPS] += len(node.inputs) - 1
            else:
                size[_LAYERS] += 1
                size[_WIDTH] += math.log2(node.layer.channels)
                size[_KERNEL] += math.log2(node.layer.kernel)
    found[:, _WIDTH] /= np.maximum(1.0, found[:, _LAYERS])
    return found


@dataclass(frozen=True, slots=True)
class Smooth:
    """The sum of saturating effects at each image size."""

    initial: Traits
    effects: Traits
    """How much of what, (SIZES, 4)."""

    @classmethod
    def draw(cls, seed: int, initial: Graph) -> Smooth:
        rng = np.random.default_rng([seed, 3])
        means = np.array([0.6, 0.6, 0.3, 0.3])
        return cls(traits(initial), rng.normal(means, 0.6, (SIZES, 4)))

    def value(self, graph: Graph) -> float:
        more = traits(graph) - self.initial
        reach = np.array([4.0, 0.5, 4.0, 2.0])
        worth = float((self.effects * np.tanh(more / reach)).sum())
        worth -= 0.002 * float(more[:, _LAYERS].sum()) ** 2
        worth -= 0.5 * float(np.square(more[:, _WIDTH]).sum())
        return 0.7 + 0.25 * math.tanh(worth / 6.0)


@dataclass(frozen=True, slots=True)
class Narrow:
    """One peak."""

    initial: Traits
    peak: NDArray[np.float64]
    """Convolutions, mean octaves of width, octaves of kernel sizes, and skips, added."""

    @classmethod
    def draw(cls, seed: int, initial: Graph) -> Narrow:
        rng = np.random.default_rng([seed, 3])
        peak = rng.integers(3, 9), rng.uniform(0.1, 0.4), rng.uniform(1.0, 6.0), rng.integers(1, 5)
        return cls(traits(initial), np.array(peak))

    def value(self, graph: Graph) -> float:
        more = traits(graph) - self.initial
        whole = more.sum(axis=0)
        whole[_WIDTH] /= SIZES
        away = (whole - self.peak) / np.array([1.5, 0.08, 1.5, 1.0])
        return 0.6 + 0.3 / (1.0 + float(away @ away) / 4.0)


LANDSCAPES: dict[str, Callable[[int, Graph], Landscape]] = {
    "smooth": Smooth.draw,
    "narrow": Narrow.draw,
}
