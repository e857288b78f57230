"""The morphism that enlarges a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np

from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.base import KERNELS, Morphism, node_of, pick, require
from aiperf_hpc.morphism.weights.checkpoint import Weights


@dataclass(frozen=True, slots=True)
class KernelSize(Morphism):
    """Give the convolution ``conv`` a larger kernel, padded with zeros: 1 to 3 to 5 to 7."""

    kind: ClassVar[str] = "kernel"

    conv: str
    kernel: int

    @classmethod
    def sample(cls, graph: Graph, rng: np.random.Generator) -> Self:
        sizes = _small_kernels(graph)
        conv = pick(list(sizes), rng, cls.kind)
        return cls(conv, sizes[conv] + 2)

    def child(self, graph: Graph) -> Graph:
        node = node_of(graph, self.conv)
        require(
            node.layer.growable_kernel,
            f"kernel: '{self.conv}' is {node.kind}, which has no kernel that grows",
        )
        now = self._now(graph)
        require(
            now < self.kernel and self.kernel in KERNELS,
            f"kernel: '{self.conv}' has kernel {now}; the new one must be one of {KERNELS} above",
        )
        grown = replace(node, layer=replace(node.layer, kernel=self.kernel))  # type: ignore[call-arg]
        return Graph(tuple(grown if n.name == node.name else n for n in graph.nodes))

    def _inherited(self, graph: Graph, weights: Weights, rng: np.random.Generator) -> Weights:
        kernel = weights[f"{self.conv}/kernel"]
        now = self._now(graph)
        first = (self.kernel - now) // 2
        middle = slice(first, first + now)
        # Not np.pad, which writes the zeros that the system gives for nothing.
        padded = np.zeros((self.kernel, self.kernel, *kernel.shape[2:]), np.float32)
        padded[middle, middle] = kernel
        return {**weights, f"{self.conv}/kernel": padded}

    def _now(self, graph: Graph) -> int:
        return graph.parameters[f"{self.conv}/kernel"][0]


@lru_cache(maxsize=64)
def _small_kernels(graph: Graph) -> Mapping[str, int]:
    """Return the kernel sizes that can grow."""
    return {
        node.name: node.layer.window.kernel
        for node in graph.nodes
        if node.layer.growable_kernel and node.layer.window.kernel < KERNELS[-1]
    }
