"""Which nodes must have the same number of channels, and who reads those channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from aiperf_hpc.graph import Conv2D, Dense, Graph, Input, Softmax

PRODUCERS = (Conv2D, Dense)
"""Layers whose number of output channels is their own choice."""


@dataclass(frozen=True, slots=True)
class ChannelGroup:
    """Nodes whose outputs have the same channels, tied by normalisation, addition, pooling."""

    members: tuple[str, ...]
    producers: tuple[str, ...]
    """The members that make the channels."""
    readers: tuple[str, ...]
    """The producers of other channels that read these."""
    fixed: bool
    """True where the dataset decides the channels: the samples' and the classes'."""


@lru_cache(maxsize=64)
def channel_groups(graph: Graph) -> Mapping[str, ChannelGroup]:
    """Return the group of every node, named by its first producer or, without one, member."""
    leader: dict[str, str] = {}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for node in graph.nodes:
        leader[node.name] = node.name
        if not isinstance(node.layer, PRODUCERS):
            for source in node.inputs:
                leader[find(source)] = find(node.name)
    members: dict[str, list[str]] = {}
    for node in graph.nodes:
        members.setdefault(find(node.name), []).append(node.name)
    return {
        group.producers[0] if group.producers else group.members[0]: group
        for group in (_group(graph, tuple(names)) for names in members.values())
    }


def _group(graph: Graph, members: tuple[str, ...]) -> ChannelGroup:
    layers = {name: graph.by_name[name].layer for name in members}
    readers = {r: None for name in members for r in graph.consumers[name]}
    return ChannelGroup(
        members,
        tuple(name for name, layer in layers.items() if isinstance(layer, PRODUCERS)),
        tuple(r for r in readers if isinstance(graph.by_name[r].layer, PRODUCERS)),
        any(isinstance(layer, Input | Softmax) for layer in layers.values())
        or graph.output.name in layers,
    )
