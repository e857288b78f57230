"""A summary of a run's machine, and its text for terminals, pages and MLPerf's description."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from aiperf_hpc.formatting import few, size
from aiperf_hpc.grouping import grouped
from aiperf_hpc.system.description import (
    Accelerator,
    FileSystem,
    Job,
    Memory,
    NetworkPort,
    NodeDescription,
    ProcessDescription,
    Processors,
    RankDescription,
    SiteDescription,
)
from aiperf_hpc.trial import Value

_EQUAL_MEMORY = 0.01
"""Maximum relative difference in memory of equal nodes, whose kernels reserve different amounts."""


class NodeGroup(Value):
    """Equal nodes, which differ only in host name and device identifiers."""

    count: int
    """Number of nodes in the group."""
    hosts: tuple[str, ...]
    """Host names."""
    node: NodeDescription
    """Description of the first host."""


class MachineSummary(Value):
    """The machine of a run."""

    nodes: tuple[NodeGroup, ...] = ()
    """Groups of nodes with ranks, the largest first."""
    primary: NodeGroup | None = None
    """Node of the primary, if no rank ran on it."""
    ranks: int = 0
    """Number of processes with a description."""
    libraries: dict[str, tuple[str, ...]] = {}
    """All reported versions by library."""
    jobs: tuple[Job, ...] = ()
    """Jobs of the scheduler."""
    environment: dict[str, str] = {}
    """Environment variables with the same value in all processes."""
    environment_differs: tuple[str, ...] = ()
    """Environment variables that differ between processes or are missing in some."""
    site: SiteDescription | None = None
    """System description by its owner."""

    @property
    def node_count(self) -> int:
        return sum(group.count for group in self.nodes)


def summarize(
    ranks: Sequence[RankDescription],
    primary: RankDescription | None = None,
    site: SiteDescription | None = None,
) -> MachineSummary:
    """Return the machine of a run from the descriptions by its ranks and its primary."""
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
    """Group equal nodes, given by host name; the largest group is first."""
    alike = grouped((_likeness(node), host) for host, node in nodes.items())
    found = [
        NodeGroup(count=len(hosts), hosts=tuple(hosts), node=nodes[hosts[0]])
        for group in alike.values()
        for hosts in _of_equal_memory(group, nodes)
    ]
    return tuple(sorted(found, key=lambda group: (-group.count, group.hosts)))


def _of_equal_memory(
    hosts: Iterable[str], nodes: Mapping[str, NodeDescription]
) -> Iterator[list[str]]:
    """Yield groups of hosts with approximately the same memory size."""
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
    """Return a key that is the same for equal nodes; it does not include the memory size."""
    nameless = {"uuid": None, "pci_address": None}
    accelerators = tuple(each.model_copy(update=nameless) for each in node.accelerators)
    # The size and source of a local file system differ between nodes.
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
    """Return the variables common to all processes, and the names of differing variables."""
    if not processes:
        return {}, ()
    names = sorted({name for process in processes for name in process.environment})
    common = {
        name: value
        for name, value in sorted(processes[0].environment.items())
        if all(process.environment.get(name) == value for process in processes)
    }
    return common, tuple(name for name in names if name not in common)


def clock(megahertz: float) -> str:
    """Return a frequency in gigahertz."""
    return f"{megahertz / 1000:.4g} GHz"


def times(count: int, what: str) -> str:
    """Return ``4 × what``, or ``what`` for a count of 1."""
    return what if count == 1 else f"{count} × {what}"


def machine_line(machine: MachineSummary) -> str:
    """Return the nodes in one line, with accelerators and processors; empty if none is known."""
    return "; ".join(_group_line(group) for group in machine.nodes)


def _group_line(group: NodeGroup) -> str:
    line = node_line(group.node)
    return times(group.count, f"({line})") if group.count > 1 else line


def node_line(node: NodeDescription) -> str:
    """Return a node in one line: its accelerators, processors and memory."""
    parts = [times(count, model) for model, count in _models(node.accelerators).items()]
    if node.processors is not None:
        parts.append(_processors_briefly(node.processors))
    if node.memory is not None:
        parts.append(size(node.memory.total_bytes))
    return ", ".join(parts)


def kind_of(node: NodeDescription) -> str:
    """Return the kind of a node: its accelerators or, if it has none, its processors."""
    told = _models(node.accelerators) or {
        f"{vendor} accelerator": count for vendor, count in (node.pci_accelerators or {}).items()
    }
    if told:
        return ", ".join(times(count, model) for model, count in told.items())
    processors = node.processors
    return "unknown" if processors is None else next(processor_details(processors))


def _models(accelerators: Sequence[Accelerator]) -> Counter[str]:
    return Counter(each.model for each in accelerators)


def _processors_briefly(processors: Processors) -> str:
    name = times(processors.sockets or 1, processors.model or processors.architecture)
    cores = processors.cores
    return name if cores is None else f"{name} ({cores} core{'s' * (cores > 1)})"


def node_rows(node: NodeDescription) -> Iterator[tuple[str, str]]:
    """Yield names and values of the known parts of a node."""
    if (processors := node.processors) is not None:
        yield "processors", ", ".join(processor_details(processors))
        if processors.cache_bytes:
            yield "caches", caches(processors)
    if node.memory is not None:
        yield "memory", ", ".join(memory_details(node.memory))
    for model, count in _models(node.accelerators).items():
        first = next(each for each in node.accelerators if each.model == model)
        yield "accelerators", ", ".join([times(count, model), *accelerator_details(first)])
    for what, count in Counter(map(port_text, node.network)).items():
        yield "network", times(count, what)
    for held in node.file_systems:
        yield f"file system of {held.use}", ", ".join(file_system_details(held))
    if (system := node.operating_system) is not None:
        said = [system.name, f"Linux {system.kernel}", system.hardware]
        said.append(f"in {system.container}" if system.container else None)
        said.append(system.container_image)
        yield "operating system", ", ".join(part for part in said if part)
    if node.software:
        yield "software", versions_text({k: (v,) for k, v in node.software.items()})


def processor_details(processors: Processors) -> Iterator[str]:
    """Yield the known details of a node's processors."""
    yield times(processors.sockets or 1, processors.model or processors.architecture)
    if processors.cores is not None:
        yield f"{processors.cores} cores, {processors.threads} threads"
    if processors.base_mhz is not None:
        yield f"base {clock(processors.base_mhz)}"
    if processors.max_mhz is not None:
        yield f"at most {clock(processors.max_mhz)}"
    if processors.quota_cores is not None:
        yield f"a quota of {processors.quota_cores:g} cores"
    if processors.virtual:
        yield "virtual"


def caches(processors: Processors) -> str:
    """Return the total size of the caches of each kind."""
    found = processors.cache_bytes or {}
    return ", ".join(f"{name} {size(count)}" for name, count in found.items())


def memory_details(memory: Memory) -> Iterator[str]:
    """Yield the known details of a node's memory."""
    yield size(memory.total_bytes)
    if memory.limit_bytes is not None:
        yield f"limited to {size(memory.limit_bytes)}"
    if memory.numa:
        yield f"{len(memory.numa)} NUMA node{'s' * (len(memory.numa) > 1)}"
    if memory.swap_bytes:
        yield f"swap {size(memory.swap_bytes)}"


def accelerator_details(accelerator: Accelerator) -> Iterator[str]:
    """Yield the known details of an accelerator, without its model."""
    if accelerator.memory_bytes is not None:
        yield size(accelerator.memory_bytes)
    if accelerator.max_clock_mhz is not None:
        yield f"at most {clock(accelerator.max_clock_mhz)}"
    power = accelerator.power_limit_watts or accelerator.max_power_limit_watts
    if power is not None:
        highest = accelerator.max_power_limit_watts
        lowered = f" (of {highest:g} W)" if highest is not None and highest != power else ""
        yield f"{power:g} W{lowered}"
    if accelerator.pcie is not None:
        yield accelerator.pcie
    if accelerator.links:
        yield f"{accelerator.links} links"
    if accelerator.partitioned:
        yield "partitioned"
    if accelerator.driver is not None:
        yield f"driver {accelerator.driver}"


def port_text(port: NetworkPort) -> str:
    """Return a description of a port without its name."""
    speed = port.rate or (None if port.gigabits is None else f"{port.gigabits:g} Gbit/s")
    kind = port.link_layer if port.link_layer == port.kind else f"{port.link_layer} (verbs)"
    said = [kind, speed, port.adapter]
    said.append(None if port.state.lower() in ("up", "active") else port.state)
    return " ".join(part for part in said if part)


def file_system_details(held: FileSystem) -> Iterator[str]:
    """Yield the known details of a file system."""
    yield f"{held.type} from {held.source} at {held.mount_point}"
    if held.total_bytes is not None:
        yield size(held.total_bytes)
    yield f"options {','.join(held.options)}"


def versions_text(versions: dict[str, tuple[str, ...]]) -> str:
    """Return the names with their versions as text."""
    return ", ".join(f"{name} {' and '.join(said)}" for name, said in versions.items())


def absences(node: NodeDescription) -> Iterator[tuple[str, str]]:
    """Yield the names of a node's missing values, with the reasons."""
    yield from node.absent.items()
    for name in ("processors", "memory", "operating_system"):
        if (part := getattr(node, name)) is not None:
            yield from ((f"{name}.{key}", why) for key, why in part.absent.items())
    seen = set()
    for accelerator in node.accelerators:
        for key, why in accelerator.absent.items():
            if (accelerator.model, key) not in seen:
                seen.add((accelerator.model, key))
                yield f"{accelerator.model}: {key}", why


def group_title(group: NodeGroup) -> str:
    """Return the number and the names of a group's hosts."""
    return f"{group.count} host{'s' * (group.count != 1)}: {few(group.hosts, 4)}"


def nodes(count: int) -> str:
    """Return ``1 node`` or ``4 nodes``."""
    return f"{count} node{'s' * (count != 1)}"
