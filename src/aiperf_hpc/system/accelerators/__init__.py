"""The accelerators of this node: description and telemetry, one module per vendor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple

from aiperf_hpc.system.accelerators import amd, ascend, nvidia
from aiperf_hpc.system.accelerators.source import AcceleratorSource
from aiperf_hpc.system.description import Absent, Accelerator
from aiperf_hpc.system.tools import ROOT, AbsentError, entries, text_of


class Vendor(NamedTuple):
    """A vendor, with functions to list and read its accelerators."""

    name: str
    pci: str
    """PCI vendor ID."""
    accelerators: Callable[[], tuple[Accelerator, ...]]
    """Lists the accelerators. Raises AbsentError with the reason if it cannot."""
    source: Callable[[], AbstractContextManager[AcceleratorSource]]
    """Opens their telemetry. Raises AbsentError with the reason if it cannot."""


VENDORS: Final = (
    Vendor(nvidia.VENDOR, "0x10de", nvidia.accelerators, nvidia.nvidia_source),
    Vendor(amd.VENDOR, "0x1002", amd.accelerators, amd.amd_source),
    Vendor(ascend.VENDOR, "0x19e5", ascend.accelerators, ascend.ascend_source),
)
_PCI_VENDORS: Final = {vendor.pci: vendor.name for vendor in VENDORS}
_PCI_CLASSES: Final = ("0x0300", "0x0302", "0x0380", "0x1200")
"""PCI classes of VGA, 3D and display controllers and of processing accelerators."""


class Found(NamedTuple):
    """The accelerators of this node, and the vendors without any."""

    accelerators: tuple[Accelerator, ...]
    absent: Absent
    """Reasons for missing accelerators, by vendor."""


def find_accelerators() -> Found:
    """Return all accelerators of this node, ordered by vendor and number."""
    found: list[Accelerator] = []
    absent: Absent = {}
    for vendor in VENDORS:
        try:
            found += vendor.accelerators()
        except AbsentError as error:
            absent[vendor.name] = str(error)
    return Found(tuple(found), absent)


def least_memory(accelerators: Iterable[Accelerator]) -> int | None:
    """Return the smallest memory size in bytes, or None if one is unknown or partitioned."""
    sizes = [None if each.partitioned else each.memory_bytes for each in accelerators]
    known = [size for size in sizes if size is not None]
    return min(known) if known and len(known) == len(sizes) else None


def computing_on_bus(root: Path = ROOT) -> dict[str, int]:
    """Return the number of compute devices on the PCI bus by vendor.

    VGA controllers, such as integrated graphics, are excluded. The result is empty if the kernel
    does not list the bus.
    """
    try:
        return pci_accelerators(root, _PCI_CLASSES[1:])
    except (OSError, AbsentError):
        return {}


def pci_accelerators(root: Path = ROOT, classes: tuple[str, ...] = _PCI_CLASSES) -> dict[str, int]:
    """Return the number of accelerators on the PCI bus by vendor.

    Args:
        root: parent folder of ``/sys``.
        classes: prefixes of the PCI classes to count.

    Raises:
        OSError, AbsentError: the kernel does not list the bus.
    """
    bus = root / "sys/bus/pci/devices"
    if not bus.is_dir():
        raise AbsentError("the kernel reports no PCI bus")
    counts: dict[str, int] = {}
    for device in entries(bus):
        vendor = _PCI_VENDORS.get(text_of(device / "vendor"))
        if vendor is not None and text_of(device / "class").startswith(classes):
            counts[vendor] = counts.get(vendor, 0) + 1
    return counts
