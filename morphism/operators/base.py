"""The morphisms: functions from a graph to a graph, with the weights' counterpart.

A child computes the same function as its parent when it is made (Net2Net, Chen et al. 2016;
network morphism, Wei et al. 2016), and its weights are its parent's but for what was added.
Noise is added only when it is asked for. A morphism is plain data that a record can hold;
everything random comes from a passed generator; nothing is changed in place.
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
        """Draw one that applies to ``graph``. Raises MorphismError when none does."""

    @abstractmethod
    def child(self, graph: Graph) -> Graph:
        """Return the child. Raises MorphismError when this does not apply to ``graph``."""

    def weights(
        self, graph: Graph, weights: Weights, rng: np.random.Generator, noise: float = 0.0
    ) -> Weights:
        """Return the child's weights; arrays that stay as they are are the parent's own.

        Args:
            graph: the parent.
            weights: the parent's.
            rng: where every random choice comes from.
            noise: standard deviation of the normal noise on every kernel that this makes or
                changes, in that of a fresh kernel of its shape (He's initialisation): unlike
                that of what is there, it is not zero for kernels of zeros. With 0, the
                function is kept; the more there is, the further the child is from its parent.
        """
        inherited = self._inherited(graph, weights, rng)
        if noise == 0.0:
            return inherited
        # Files give their tensors in any order: by name, a seed's noise is the same each time.
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
        """Return plain values that ``from_data`` reads back."""
        return {"kind": self.kind, **asdict(self)}


def require(condition: bool, message: str) -> None:
    """Raise MorphismError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise MorphismError(message)


def node_of(graph: Graph, name: str, layer: type[Layer] | None = None) -> Node:
    """Return the node, whose layer is a ``layer`` where that is given.

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
    """Draw one of ``names``. Raises MorphismError when there is none."""
    require(bool(names), f"{kind}: the graph has no place for it")
    return names[int(rng.integers(len(names)))]
