"""What a machine cannot tell of itself: a small YAML file that people edit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field

from aiperf_hpc.trial import Value

Status = Literal[
    "",
    "Available on-premise",
    "Available cloud",
    "Research, Development, or Internal (RDI)",
    "Preview",
]
"""What MLPerf's rules know as the availability of a system; empty where it is not said."""
Text = Annotated[str, Field(max_length=4000)]


class SiteDescription(Value):
    """What people say of their system. What is empty is not said.

    The names are those of MLPerf's description of a system.
    """

    model_config = ConfigDict(coerce_numbers_to_str=True)

    submitter: Text = Field("", description="organisation that submits the result")
    system_name: Text = Field("", description="name of the system, e.g. JUWELS Booster")
    division: Literal["", "closed", "open"] = Field("", description="closed or open")
    status: Status = Field("", description="availability, one of MLPerf's four words below")
    host_processor_interconnect: Text = Field("", description="between sockets, e.g. UPI")
    host_memory_configuration: Text = Field("", description="modules, e.g. 16 x 64 GB DDR5-4800")
    host_storage_type: Text = Field("", description="e.g. Lustre, NVMe SSD; else the run's")
    host_storage_capacity: Text = Field("", description="e.g. 14 PB; else that of the run's")
    host_networking: Text = Field("", description="e.g. 4 x HDR InfiniBand; else as found")
    host_networking_topology: Text = Field("", description="e.g. fat tree, DragonFly+")
    accelerator_host_interconnect: Text = Field("", description="e.g. PCIe 4.0 x16; else as found")
    accelerator_interconnect: Text = Field("", description="e.g. NVLink 3; else links as found")
    accelerator_interconnect_topology: Text = Field("", description="e.g. fully connected")
    accelerator_on_chip_memories: Text = Field("", description="caches of the accelerator")
    accelerator_memory_configuration: Text = Field("", description="e.g. HBM2e")
    cooling: Text = Field("", description="e.g. air, direct liquid")
    hw_notes: Text = Field("", description="anything else about the hardware")
    sw_notes: Text = Field("", description="anything else about the software")


def template() -> str:
    """Return such a file with nothing filled in, and what each entry means."""
    return "\n".join(_template_lines()) + "\n"


def _template_lines() -> Iterator[str]:
    yield "# What this system is, as far as it cannot tell itself. Every entry may stay empty."
    yield "# For `aiperf start --system FILE` and `aiperf system --system FILE`."
    yield ""
    for name, field in SiteDescription.model_fields.items():
        yield f"# {field.description}"
        if name == "status":
            yield from (f"#   {word}" for word in get_args(Status) if word)
        yield f'{name}: ""'
