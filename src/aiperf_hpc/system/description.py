"""The values that describe a node. What is None has its reason in ``absent``, by its name."""

from __future__ import annotations

from aiperf_hpc.trial import Value

Absent = dict[str, str]
"""Why something is not told, by its name."""


class Accelerator(Value):
    """One accelerator as its vendor's tool names and counts it."""

    vendor: str
    model: str
    index: int
    """The vendor's number of it on this node, in the order of its own tool."""
    uuid: str | None = None
    pci_address: str | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    max_clock_mhz: float | None = None
    """The highest clock of what computes."""
    max_memory_clock_mhz: float | None = None
    power_limit_watts: float | None = None
    """The limit that is set now."""
    default_power_limit_watts: float | None = None
    max_power_limit_watts: float | None = None
    """The highest that may be set."""
    pcie: str | None = None
    """The fastest link to the host that it can have, e.g. PCIe 5.0 x16."""
    links: int | None = None
    """Its links to other accelerators that are up, e.g. NVLinks."""
    partitioned: bool | None = None
    """Whether it is divided into several, e.g. by MIG."""
    absent: Absent = {}
