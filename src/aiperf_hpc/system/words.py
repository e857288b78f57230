"""A node in words: for terminals, pages and MLPerf's description alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from aiperf_hpc.system.description import (
    Accelerator,
    FileSystem,
    Memory,
    NetworkPort,
    NodeDescription,
    Processors,
)
from aiperf_hpc.system.summary import MachineSummary, NodeGroup

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(count: float) -> str:
    """Return bytes in binary units, as memory is sold: 80 GiB."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.4g} {_UNITS[unit]}"


def clock(megahertz: float) -> str:
    """Return a frequency in gigahertz."""
    return f"{megahertz / 1000:.4g} GHz"


def times(count: int, what: str) -> str:
    """Return ``4 × what``, or what there is one of."""
    return what if count == 1 else f"{count} × {what}"


def machine_line(machine: MachineSummary) -> str:
    """Return the nodes in one line: processors and accelerators; empty where none is known."""
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
    """Return what kind of node it is: its accelerators or, where it has none, its processors."""
    told = _models(node.accelerators) or {
        f"{vendor} accelerator": count for vendor, count in (node.pci_accelerators or {}).items()
    }
    if told:
        return ", ".join(times(count, model) for model, count in told.items())
    processors = node.processors
    return "unknown" if processors is None else next(processor_words(processors))


def _models(accelerators: Sequence[Accelerator]) -> Counter[str]:
    return Counter(each.model for each in accelerators)


def _processors_briefly(processors: Processors) -> str:
    name = times(processors.sockets or 1, processors.model or processors.architecture)
    cores = processors.cores
    return name if cores is None else f"{name} ({cores} core{'s' * (cores > 1)})"


def node_rows(node: NodeDescription) -> Iterator[tuple[str, str]]:
    """Yield what is known of a node, a name and its value each; what is absent is left out."""
    if (processors := node.processors) is not None:
        yield "processors", ", ".join(processor_words(processors))
        if processors.cache_bytes:
            yield "caches", caches(processors)
    if node.memory is not None:
        yield "memory", ", ".join(memory_words(node.memory))
    for model, count in _models(node.accelerators).items():
        first = next(each for each in node.accelerators if each.model == model)
        yield "accelerators", ", ".join([times(count, model), *accelerator_words(first)])
    for what, count in Counter(map(port_words, node.network)).items():
        yield "network", times(count, what)
    for held in node.file_systems:
        yield f"file system of {held.use}", ", ".join(file_system_words(held))
    if (system := node.operating_system) is not None:
        said = [system.name, f"Linux {system.kernel}", system.hardware]
        said.append(f"in {system.container}" if system.container else None)
        said.append(system.container_image)
        yield "operating system", ", ".join(part for part in said if part)
    if node.software:
        yield "software", versions_words({k: (v,) for k, v in node.software.items()})


def processor_words(processors: Processors) -> Iterator[str]:
    """Yield what is known of a node's processors."""
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
    """Return the sum of the caches of each kind."""
    found = processors.cache_bytes or {}
    return ", ".join(f"{name} {size(count)}" for name, count in found.items())


def memory_words(memory: Memory) -> Iterator[str]:
    """Yield what is known of a node's memory."""
    yield size(memory.total_bytes)
    if memory.limit_bytes is not None:
        yield f"limited to {size(memory.limit_bytes)}"
    if memory.numa:
        yield f"{len(memory.numa)} NUMA node{'s' * (len(memory.numa) > 1)}"
    if memory.swap_bytes:
        yield f"swap {size(memory.swap_bytes)}"


def accelerator_words(accelerator: Accelerator) -> Iterator[str]:
    """Yield what an accelerator is besides its model."""
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


def port_words(port: NetworkPort) -> str:
    """Return what a port is, but for its name."""
    speed = port.rate or (None if port.gigabits is None else f"{port.gigabits:g} Gbit/s")
    kind = port.link_layer if port.link_layer == port.kind else f"{port.link_layer} (verbs)"
    said = [kind, speed, port.adapter]
    said.append(None if port.state.lower() in ("up", "active") else port.state)
    return " ".join(part for part in said if part)


def file_system_words(held: FileSystem) -> Iterator[str]:
    """Yield what is known of a file system."""
    yield f"{held.type} from {held.source} at {held.mount_point}"
    if held.total_bytes is not None:
        yield size(held.total_bytes)
    yield f"options {','.join(held.options)}"


def versions_words(versions: dict[str, tuple[str, ...]]) -> str:
    """Return names with their versions."""
    return ", ".join(f"{name} {' and '.join(said)}" for name, said in versions.items())


def absences(node: NodeDescription) -> Iterator[tuple[str, str]]:
    """Yield what a node does not tell, and why."""
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
    """Return how many hosts of which names a group has."""
    hosts = group.hosts
    shown = ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
    return f"{group.count} host{'s' * (group.count != 1)}: {shown}"


def nodes(count: int) -> str:
    """Return ``1 node`` or ``4 nodes``."""
    return f"{count} node{'s' * (count != 1)}"
