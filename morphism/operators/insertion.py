"""What morphisms share that insert a block of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from aiperf_hpc.graph import Graph, Node, ReLU


@lru_cache(maxsize=64)
def image_relus(graph: Graph) -> list[str]:
    """Return the names of the ReLUs that give an image, in the graph's order."""
    return [
        node.name
        for node in graph.nodes
        if isinstance(node.layer, ReLU) and len(graph.shapes[node.name]) == 3
    ]


def unused_stem(graph: Graph, stem: str, *endings: str) -> str:
    """Return ``stem`` with the first number that makes unused names of all ``endings``."""
    numbers = (f"{stem}{n}" for n in range(1, len(graph.nodes) + 2))
    return next(s for s in numbers if not any(f"{s}{e}" in graph.by_name for e in endings))


def insert_behind(graph: Graph, name: str, block: tuple[Node, ...]) -> tuple[Node, ...]:
    """Let every reader of ``name`` read the last node of ``block`` instead."""

    def rewired() -> Iterator[Node]:
        for node in graph.nodes:
            if name in node.inputs:
                sources = tuple(block[-1].name if s == name else s for s in node.inputs)
                yield replace(node, inputs=sources)
            else:
                yield node
            if node.name == name:
                yield from block

    return tuple(rewired())
