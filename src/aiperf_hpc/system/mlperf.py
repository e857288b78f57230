"""MLPerf's system description: the 33 fields that its checker requires.

[mlcommons/policies, submission_rules.adoc, System description; mlperf-logging,
system_desc_checker]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from aiperf_hpc.formatting import size
from aiperf_hpc.system import summary
from aiperf_hpc.system.description import Accelerator, NodeDescription, Processors, SiteDescription

Description = dict[str, str | dict[str, str]]
FRAMEWORKS: Final = ("PyTorch", "TensorFlow")
NEEDED: Final = ("submitter", "division", "status", "system_name")
"""Fields that are required for a submission."""


def system_description(machine: summary.MachineSummary) -> Description:
    """Return the description of a machine; unknown fields are empty.

    If the nodes differ, it describes the largest group, and the notes list the other groups.
    """
    site = machine.site or SiteDescription()
    group = machine.nodes[0] if machine.nodes else machine.primary
    found = _of_machine(machine, group) | _of_software(machine, group)
    return {
        "submitter": site.submitter,
        "division": site.division,
        "status": site.status,
        "system_name": site.system_name,
        **{n: getattr(site, n.replace("-", "_"), "") or found.get(n, "") for n in _HARDWARE},
        "cooling": site.cooling,
        "hw_notes": "; ".join(filter(None, [site.hw_notes, *_other_nodes(machine)])),
        "framework": found["framework"],
        "other_software_stack": found["other_software_stack"],
        "operating_system": found["operating_system"],
        "sw_notes": site.sw_notes,
    }


_HARDWARE: Final = (
    "number_of_nodes",
    "host_processors_per_node",
    "host_processor_model_name",
    "host_processor_core_count",
    "host_processor_vcpu_count",
    "host_processor_frequency",
    "host_processor_caches",
    "host_processor_interconnect",
    "host_memory_capacity",
    "host_storage_type",
    "host_storage_capacity",
    "host_networking",
    "host_networking_topology",
    "host_memory_configuration",
    "accelerators_per_node",
    "accelerator_model_name",
    "accelerator_host_interconnect",
    "accelerator_frequency",
    "accelerator_on-chip_memories",
    "accelerator_memory_configuration",
    "accelerator_memory_capacity",
    "accelerator_interconnect",
    "accelerator_interconnect_topology",
)


def unknown(description: Description) -> list[str]:
    """Return the names of the empty fields."""
    return [name for name, value in description.items() if not value]


def _of_machine(machine: summary.MachineSummary, group: summary.NodeGroup | None) -> Description:
    if group is None:
        return {}
    node = group.node
    found: Description = {"number_of_nodes": str(max(machine.node_count, 1))}
    if node.processors is not None:
        found |= dict(_of_processors(node.processors))
    if node.memory is not None:
        found["host_memory_capacity"] = size(node.memory.total_bytes)
    ports = Counter(summary.port_text(port) for port in node.network if not port.virtual)
    found["host_networking"] = "; ".join(
        summary.times(count, what) for what, count in ports.items()
    )
    for held in node.file_systems[:1]:
        found["host_storage_type"] = held.type
        found["host_storage_capacity"] = size(held.total_bytes) if held.total_bytes else ""
    return found | _of_accelerators(node)


def _of_processors(processors: Processors) -> Iterator[tuple[str, str]]:
    sockets, cores = processors.sockets, processors.cores
    yield "host_processor_model_name", processors.model or ""
    yield "host_processor_vcpu_count", str(processors.threads)
    yield "host_processor_caches", summary.caches(processors)
    yield "host_processors_per_node", str(sockets or "")
    yield "host_processor_core_count", str(cores // sockets) if cores and sockets else ""
    clocks = [("base", processors.base_mhz), ("at most", processors.max_mhz)]
    said = [f"{what} {summary.clock(mhz)}" for what, mhz in clocks if mhz is not None]
    yield "host_processor_frequency", ", ".join(said)


def _of_accelerators(node: NodeDescription) -> Description:
    if not node.accelerators:
        # Without a vendor's tool, only the PCI bus shows whether there are accelerators.
        return {"accelerators_per_node": "0"} if node.pci_accelerators == {} else {}
    models = Counter(each.model for each in node.accelerators)
    model, _ = models.most_common(1)[0]
    first = next(each for each in node.accelerators if each.model == model)
    return {
        "accelerators_per_node": str(len(node.accelerators)),
        "accelerator_model_name": ", ".join(models),
        **dict(_of_accelerator(first)),
    }


def _of_accelerator(accelerator: Accelerator) -> Iterator[tuple[str, str]]:
    if accelerator.memory_bytes is not None:
        yield "accelerator_memory_capacity", size(accelerator.memory_bytes)
    if accelerator.max_clock_mhz is not None:
        yield "accelerator_frequency", f"{accelerator.max_clock_mhz:g} MHz"
    if accelerator.pcie is not None:
        yield "accelerator_host_interconnect", accelerator.pcie
    if accelerator.links:
        yield "accelerator_interconnect", f"{accelerator.links} links of {accelerator.vendor}'s"


def _of_software(machine: summary.MachineSummary, group: summary.NodeGroup | None) -> Description:
    libraries = {name: " and ".join(said) for name, said in machine.libraries.items()}
    frameworks = [f"{name} {libraries.pop(name)}" for name in FRAMEWORKS if name in libraries]
    system = group.node.operating_system if group is not None else None
    named = [system.name or "", f"Linux {system.kernel}"] if system is not None else []
    accelerators = group.node.accelerators if group is not None else ()
    drivers = sorted({each.driver for each in accelerators if each.driver})
    return {
        "framework": ", ".join(frameworks),
        "other_software_stack": {
            **(group.node.software if group is not None else {}),
            **({"driver": ", ".join(drivers)} if drivers else {}),
            **libraries,
        },
        "operating_system": ", ".join(filter(None, named)),
    }


def _other_nodes(machine: summary.MachineSummary) -> Iterator[str]:
    for group in machine.nodes[1:]:
        yield f"besides {summary.nodes(group.count)} of {summary.node_line(group.node)}"
    for group in machine.nodes[:1]:
        if len(machine.nodes) > 1:
            yield f"the fields describe {group.count} of the {summary.nodes(machine.node_count)}"
