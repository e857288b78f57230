"""Description of a system by its owner: a YAML file with properties that cannot be detected."""

from __future__ import annotations

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
"""Availability of a system by MLPerf's rules; empty if not given."""
Text = Annotated[str, Field(max_length=4000)]


class SiteDescription(Value):
    """Description of a system by its owner, with the field names of MLPerf's system description."""

    model_config = ConfigDict(coerce_numbers_to_str=True, use_attribute_docstrings=True)

    submitter: Text = ""
    """Organization that submits the result."""
    system_name: Text = ""
    """Name of the system, for example JUWELS Booster."""
    division: Literal["", "closed", "open"] = ""
    """Division: closed or open."""
    status: Status = ""
    """Availability: one of MLPerf's four values listed below."""
    host_processor_interconnect: Text = ""
    """Interconnect between sockets, for example UPI."""
    host_memory_configuration: Text = ""
    """Memory modules, for example 16 x 64 GB DDR5-4800."""
    host_storage_type: Text = ""
    """For example Lustre or NVMe SSD; default: as detected."""
    host_storage_capacity: Text = ""
    """For example 14 PB; default: as detected."""
    host_networking: Text = ""
    """For example 4 x HDR InfiniBand; default: as detected."""
    host_networking_topology: Text = ""
    """For example fat tree or Dragonfly+."""
    accelerator_host_interconnect: Text = ""
    """For example PCIe 4.0 x16; default: as detected."""
    accelerator_interconnect: Text = ""
    """For example NVLink 3; default: as detected."""
    accelerator_interconnect_topology: Text = ""
    """For example fully connected."""
    accelerator_on_chip_memories: Text = ""
    """Caches of the accelerator."""
    accelerator_memory_configuration: Text = ""
    """For example HBM2e."""
    cooling: Text = ""
    """For example air or direct liquid."""
    hw_notes: Text = ""
    """Other notes on the hardware."""
    sw_notes: Text = ""
    """Other notes on the software."""


def template() -> str:
    """Return an empty description file with a comment on each entry."""
    text = (
        "# Description of this system: what cannot be detected. Every entry is optional.\n"
        "# For `aiperf start --system FILE` and `aiperf system --system FILE`.\n\n"
    )
    for name, field in SiteDescription.model_fields.items():
        values = [word for word in get_args(Status) if word] if name == "status" else []
        text += "\n#   ".join([f"# {field.description}", *values]) + f'\n{name}: ""\n'
    return text
