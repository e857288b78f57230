"""A run's machine in few words: equal nodes together, and what its processes have in common."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from aiperf_hpc.system.description import (
    Job,
    NodeDescription,
    ProcessDescription,
    RankDescription,
)
from aiperf_hpc.system.site import SiteDescription
from aiperf_hpc.trial import Value

_EQUAL_MEMORY = 0.01
"""The share by which equal nodes' memory may differ: their kernels do not leave over the same."""


class NodeGroup(Value):
    """Nodes that differ in no more than the names of themselves and of what is in them."""

    count: int
    hosts: tuple[str, ...]
    node: NodeDescription
    """The first host's."""


class MachineSummary(Value):
    """The machine that a run had."""

    nodes: tuple[NodeGroup, ...] = ()
    """The nodes that ranks ran on, the largest group first."""
    primary: NodeGroup | None = None
    """The primary's node, where no rank ran on it."""
    ranks: int = 0
    """How many processes described themselves."""
    libraries: dict[str, tuple[str, ...]] = {}
    """Every version that a process reported, by library."""
    jobs: tuple[Job, ...] = ()
    environment: dict[str, str] = {}
    """The variables that all of them had, with one value."""
    environment_differs: tuple[str, ...] = ()
    """The variables that not all of them had, or with other values."""
    site: SiteDescription | None = None
    """What people said of the system."""

    @property
    def node_count(self) -> int:
        return sum(group.count for group in self.nodes)


def summarize(
    ranks: Sequence[RankDescription],
    primary: RankDescription | None = None,
    site: SiteDescription | None = None,
) -> MachineSummary:
    """Return the machine of a run by what its ranks and its primary told."""
    nodes = {rank.host: rank.node for rank in ranks if rank.node is not None}
    alone = primary is not None and primary.host not in nodes
    processes = [rank.process for rank in ranks] or ([primary.process] if primary else [])
    common, differing = _variables(processes)
    return MachineSummary(
        nodes=group_nodes(nodes),
        primary=_group_of(primary) if primary is not None and alone else None,
        ranks=len(ranks),
        libraries=_libraries(processes),
        jobs=tuple(dict.fromkeys(p.job for p in processes if p.job is not None)),
        environment=common,
        environment_differs=differing,
        site=site,
    )


def group_nodes(nodes: Mapping[str, NodeDescription]) -> tuple[NodeGroup, ...]:
    """Return equal nodes together, by their hosts' names; the largest group first."""
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for host, node in nodes.items():
        alike[_likeness(node)].append(host)
    found = [
        NodeGroup(count=len(hosts), hosts=tuple(hosts), node=nodes[hosts[0]])
        for group in alike.values()
        for hosts in _of_equal_memory(group, nodes)
    ]
    return tuple(sorted(found, key=lambda group: (-group.count, group.hosts)))


def _of_equal_memory(
    hosts: Iterable[str], nodes: Mapping[str, NodeDescription]
) -> Iterator[list[str]]:
    """Yield the hosts in groups that have about as much memory as each other."""
    group: list[str] = []
    for host in sorted(hosts, key=lambda host: _memory_bytes(nodes[host])):
        least = _memory_bytes(nodes[group[0]]) if group else math.inf
        if _memory_bytes(nodes[host]) > least * (1 + _EQUAL_MEMORY):
            yield sorted(group)
            group = []
        group.append(host)
    yield sorted(group)


def _memory_bytes(node: NodeDescription) -> int:
    return 0 if node.memory is None else node.memory.total_bytes


def _group_of(rank: RankDescription) -> NodeGroup | None:
    return None if rank.node is None else NodeGroup(count=1, hosts=(rank.host,), node=rank.node)


def _likeness(node: NodeDescription) -> str:
    """Return a text that is equal for nodes that are, but perhaps for their memory."""
    nameless = {"uuid": None, "pci_address": None}
    accelerators = tuple(each.model_copy(update=nameless) for each in node.accelerators)
    # A local file system has a size and a source of its own on each node.
    held = tuple(
        each.model_copy(update={"source": "", "options": (), "total_bytes": None})
        for each in node.file_systems
    )
    update = {
        "memory": None,
        "accelerators": accelerators,
        "file_systems": held,
        "absent": dict[str, str](),
    }
    return node.model_copy(update=update).model_dump_json()


def _libraries(processes: Iterable[ProcessDescription]) -> dict[str, tuple[str, ...]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for process in processes:
        for name, version in process.libraries.items():
            found[name].add(version)
    return {name: tuple(sorted(versions)) for name, versions in sorted(found.items())}


def _variables(
    processes: Sequence[ProcessDescription],
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables of all processes, and the names of those that differ."""
    if not processes:
        return {}, ()
    values: defaultdict[str, set[str | None]] = defaultdict(set)
    names = sorted({name for process in processes for name in process.environment})
    for process in processes:
        for name in names:
            values[name].add(process.environment.get(name))
    first = processes[0].environment
    common = {name: first[name] for name in names if len(values[name]) == 1}
    return common, tuple(name for name in names if name not in common)
