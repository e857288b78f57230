"""The interface of a morphism: a function-preserving transformation of a graph and its weights.

A new child computes the same function as its parent (Net2Net, Chen et al. 2016; network morphism,
Wei et al. 2016). It inherits the parent's weights and adds new ones, with noise only if requested.
A morphism is plain data that can be recorded. Random choices use the given generator, and nothing
is modified in place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import ClassVar, Self

import numpy as np

from aiperf_hpc.errors import MorphismError
from aiperf_hpc.graph import Graph, Layer, Node
from aiperf_hpc.morphism.weights.weight_file import Weights, he_normal
from aiperf_hpc.trial import MorphismData

KERNELS = (1, 3, 5, 7)


@dataclass(frozen=True, slots=True)
class Morphism(ABC):
    """One step from a parent to a child."""

    kind: ClassVar[str]

    @classmethod
    @abstractmethod
    def sample(cls, graph: Graph, rng: np.random.Generator) -> Self:
        """Sample a morphism that applies to ``graph``. Raises MorphismError if none does."""

    @abstractmethod
    def child(self, graph: Graph) -> Graph:
        """Return the child. Raises MorphismError if the morphism does not apply to ``graph``."""

    def weights(
        self, graph: Graph, weights: Weights, rng: np.random.Generator, noise: float = 0.0
    ) -> Weights:
        """Return the child's weights; unchanged arrays are shared with the parent.

        Args:
            graph: graph of the parent.
            weights: weights of the parent.
            rng: source of all random choices.
            noise: standard deviation of the normal noise on every new or changed kernel, relative
                to that of He initialization for its shape (which, unlike the kernel's own, is not
                zero for kernels of zeros). 0 preserves the function.
        """
        inherited = self._inherited(graph, weights, rng)
        if noise == 0.0:
            return inherited
        # Sorted by name, because files store tensors in any order: equal seeds give equal noise.
        return {
            name: array
            if array is weights.get(name) or not name.endswith("/kernel")
            else array + np.float32(noise) * he_normal(array.shape, rng)
            for name, array in sorted(inherited.items())
        }

    @abstractmethod
    def _inherited(self, graph: Graph, weights: Weights, rng: np.random.Generator) -> Weights:
        """Return the child's weights without noise."""

    def to_data(self) -> MorphismData:
        """Return plain data for a record; ``from_data`` reads it."""
        return {"kind": self.kind, **asdict(self)}


def require(condition: bool, message: str) -> None:
    """Raise MorphismError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise MorphismError(message)


def node_of(graph: Graph, name: str, layer: type[Layer] | None = None) -> Node:
    """Return a node, which must have a layer of class ``layer`` if that is given.

    Raises:
        MorphismError: there is no such node.
    """
    node = graph.by_name.get(name)
    if node is None:
        raise MorphismError(f"the graph has no node '{name}'")
    if layer is not None:
        require(isinstance(node.layer, layer), f"'{name}' is {node.kind}, not {layer.kind}")
    return node


def pick(names: list[str], rng: np.random.Generator, kind: str) -> str:
    """Sample one of ``names``. Raises MorphismError if there is none."""
    require(bool(names), f"{kind}: the graph has no place for it")
    return names[int(rng.integers(len(names)))]
