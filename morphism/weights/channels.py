"""Groups of nodes that must have the same number of channels, and the readers of the channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from aiperf_hpc.graph import ChannelRole, Graph

_OWN_CHANNELS = (ChannelRole.PRODUCES, ChannelRole.REARRANGES)
"""Roles of layers whose output channels differ from their input channels."""


@dataclass(frozen=True, slots=True)
class ChannelGroup:
    """Nodes whose outputs have the same channels, tied by normalization, addition or pooling."""

    members: tuple[str, ...]
    producers: tuple[str, ...]
    """Members that produce the channels."""
    readers: tuple[str, ...]
    """Producers of other channels that read these."""
    fixed: bool
    """Whether the number of channels is fixed: by the dataset (samples or classes), or because a
    reader cannot read more."""


@lru_cache(maxsize=64)
def channel_groups(graph: Graph) -> Mapping[str, ChannelGroup]:
    """Return all groups, by the first producer or, if there is none, the first member."""
    leader: dict[str, str] = {}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for node in graph.nodes:
        leader[node.name] = node.name
        if node.layer.channel_role not in _OWN_CHANNELS:
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
    roles = {name: graph.by_name[name].layer.channel_role for name in members}
    reading = {
        reader: graph.by_name[reader].layer.channel_role
        for name in members
        for reader in graph.consumers[name]
    }
    return ChannelGroup(
        members,
        tuple(name for name, role in roles.items() if role is ChannelRole.PRODUCES),
        tuple(name for name, role in reading.items() if role is ChannelRole.PRODUCES),
        ChannelRole.FIXED in roles.values()
        or ChannelRole.REARRANGES in (*roles.values(), *reading.values())
        or graph.output.name in roles,
    )
