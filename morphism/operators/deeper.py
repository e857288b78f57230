"""The morphism that inserts a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from aiperf_hpc.graph import BatchNorm, Conv2D, Graph, Node, ReLU
from aiperf_hpc.morphism.operators.base import KERNELS, Morphism, node_of, pick, require
from aiperf_hpc.morphism.operators.insertion import image_relus, insert_behind, unused_stem
from aiperf_hpc.morphism.weights.checkpoint import Weights
from aiperf_hpc.morphism.weights.moments import channel_moments, normalisation


@dataclass(frozen=True, slots=True)
class Deeper(Morphism):
    """Insert a convolution, a batch normalisation and a ReLU behind the ReLU ``after``.

    The convolution starts as the identity, the normalisation as its own inverse, and the
    second ReLU changes nothing that the first let through.
    """

    kind: ClassVar[str] = "deeper"

    after: str
    kernel: int

    @classmethod
    def sample(cls, graph: Graph, rng: np.random.Generator) -> Self:
        after = pick(image_relus(graph), rng, cls.kind)
        return cls(after, int(rng.choice((1, 3))))

    def child(self, graph: Graph) -> Graph:
        relu = node_of(graph, self.after, ReLU)
        shape = graph.shapes[relu.name]
        require(len(shape) == 3, f"deeper: '{relu.name}' is no image")
        require(self.kernel in KERNELS, f"deeper: kernel {self.kernel} is not one of {KERNELS}")
        conv, norm, activation = self._names(graph)
        block = (
            Node(conv, Conv2D(shape[-1], self.kernel), (relu.name,), inserted=True),
            Node(norm, BatchNorm(), (conv,), inserted=True),
            Node(activation, ReLU(), (norm,), inserted=True),
        )
        return Graph(insert_behind(graph, relu.name, block))

    def _inherited(self, graph: Graph, weights: Weights, rng: np.random.Generator) -> Weights:
        conv, norm, _ = self._names(graph)
        channels = graph.shapes[self.after][-1]
        kernel = np.zeros((self.kernel, self.kernel, channels, channels), np.float32)
        centre = self.kernel // 2
        # The diagonal alone is written: of the rest the system makes zeros when they are read.
        np.fill_diagonal(kernel[centre, centre], 1.0)
        moments = channel_moments(graph, weights, self.after)
        return {**weights, f"{conv}/kernel": kernel, **normalisation(norm, moments)}

    def _names(self, graph: Graph) -> tuple[str, str, str]:
        stem = unused_stem(graph, f"{self.after}_deep", "_conv", "_norm", "_relu")
        return f"{stem}_conv", f"{stem}_norm", f"{stem}_relu"
