"""The accelerators of this node, whoever made them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from aiperf_hpc.system import amd, ascend, nvidia
from aiperf_hpc.system.description import Absent, Accelerator
from aiperf_hpc.system.tools import AbsentError

FINDERS: Final[Mapping[str, Callable[[], tuple[Accelerator, ...]]]] = {
    nvidia.VENDOR: nvidia.accelerators,
    amd.VENDOR: amd.accelerators,
    ascend.VENDOR: ascend.accelerators,
}
"""What lists a vendor's accelerators, or raises AbsentError with the reason why it cannot."""


class Found(NamedTuple):
    """What was found, and of which vendors nothing was."""

    accelerators: tuple[Accelerator, ...]
    absent: Absent
    """Why there are none, by vendor."""


def find_accelerators() -> Found:
    """Return all accelerators of this node, by vendor and number."""
    found: list[Accelerator] = []
    absent: Absent = {}
    for vendor, finder in FINDERS.items():
        try:
            found += finder()
        except AbsentError as error:
            absent[vendor] = str(error)
    return Found(tuple(found), absent)
