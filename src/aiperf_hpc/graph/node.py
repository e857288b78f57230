"""A layer with its place in a graph."""

from __future__ import annotations

from dataclasses import dataclass

from aiperf_hpc.graph.layers import Layer
from aiperf_hpc.graph.recording import recorded

SCHEMA_VERSION = 1
"""The version of what a graph's JSON and its hash are made of."""


@dataclass(frozen=True, slots=True)
class Node:
    """A named layer and the names of the nodes it reads, in order."""

    name: str
    layer: Layer
    inputs: tuple[str, ...] = ()
    inserted: bool = False
    """True for a node that a morphism put in. Provenance only: not part of the graph's hash."""

    @property
    def kind(self) -> str:
        """The kind that its layer is recorded by."""
        return recorded(self.layer).kind
