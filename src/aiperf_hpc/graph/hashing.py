"""The hash of a graph: equal for graphs that differ in names and order alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from aiperf_hpc.graph.layers import Layer
from aiperf_hpc.graph.node import SCHEMA_VERSION, Node
from aiperf_hpc.graph.recording import recorded


def hash_of(nodes: Sequence[Node], consumers: Mapping[str, tuple[str, ...]]) -> str:
    """Return 128 bits in hexadecimal that depend on layers and edges alone.

    Colours from the inputs down and from the output up, then two rounds of
    Weisfeiler-Lehman refinement, so that a layer shared by two readers differs from two
    equal layers.

    Args:
        nodes: of the graph, in topological order.
        consumers: the names of the nodes that read each node's output.
    """
    by_name = {node.name: node for node in nodes}
    above: dict[str, str] = {}
    for node in nodes:
        sources = [above[source] for source in node.inputs]
        text = recorded(node.layer).text
        above[node.name] = _digest_of(f"({text}, {_ordered(node.layer, sources)})")
    below: dict[str, str] = {}
    for node in reversed(nodes):
        readers = (by_name[name] for name in consumers[node.name])
        places = [(below[r.name], _places(r, node.name)) for r in readers]
        below[node.name] = _digest_of(f"({recorded(node.layer).text}, {sorted(places)})")
    colour = {name: _digest(above[name], below[name]) for name in above}
    for _ in range(2):
        colour = {
            node.name: _digest(
                colour[node.name],
                _ordered(node.layer, [colour[source] for source in node.inputs]),
                sorted(colour[reader] for reader in consumers[node.name]),
            )
            for node in nodes
        }
    return _digest(SCHEMA_VERSION, sorted(colour.values()))


def _digest(*parts: object) -> str:
    return _digest_of(repr(parts))


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _ordered(layer: Layer, colours: list[str]) -> list[str]:
    return sorted(colours) if layer.commutative else colours


def _places(reader: Node, source: str) -> tuple[int, ...]:
    """Return where ``reader`` reads ``source``: input numbers, or a count if order is free."""
    places = tuple(i for i, name in enumerate(reader.inputs) if name == source)
    return (len(places),) if reader.layer.commutative else places
