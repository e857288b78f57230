"""This machine's memory, processor and caches, and the variables that select its accelerators."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self

import psutil

from aiperf_hpc.host.control_groups import remaining_memory


def available_bytes(share: int = 1) -> int:
    """Return the memory in bytes that each of ``share`` processes on this machine can use now.

    It is the machine's available memory or, if lower, what the limits of its control groups leave.
    """
    available, remaining = psutil.virtual_memory().available, remaining_memory()
    return min(available, available if remaining is None else remaining) // share


def cpu_model() -> str:
    """Return the name of this machine's processor, or else of its architecture."""
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


def last_level_cache_bytes() -> int | None:
    """Return the size in bytes of the first core's largest cache, or None if it is unknown."""
    sizes = [
        int(path.read_text("ascii").strip().removesuffix("K")) * 2**10
        for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    ]
    return max(sizes, default=None)


VARIABLES: Final = {
    "NVIDIA": ("CUDA_VISIBLE_DEVICES",),
    "AMD": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "Huawei": ("ASCEND_RT_VISIBLE_DEVICES",),
}
"""Variables that select accelerators, by vendor; the first one is used if none is set. AMD's are
applied in order, each to the selection of the previous one."""
BOUND: Final = "AIPERF_ACCELERATOR"
"""Variable with the accelerator that a process is bound to, as ``str(VisibleDevices)``."""
NONE: Final = frozenset({"", "-1", "NoDevFiles"})
"""Values that select no accelerator; the last is set by a scheduler."""


class VisibleDevices(NamedTuple):
    """A selection of a node's accelerators by an environment variable."""

    variable: str
    names: tuple[str, ...]
    """Numbers or unique identifiers, in the frameworks' order."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``VARIABLE=NAME,NAME``, the format of ``str``."""
        variable, _, names = text.partition("=")
        return cls(variable, tuple(names.split(",")))

    def __str__(self) -> str:
        return f"{self.variable}={','.join(self.names)}"


def devices_seen(vendor: str, count: int, environment: Mapping[str, str]) -> VisibleDevices:
    """Return the accelerators that are visible to a framework.

    Args:
        vendor: vendor of the accelerators.
        count: number of accelerators that the framework reports.
        environment: environment variables of the framework's process.
    """
    variables = VARIABLES[vendor]
    given = next((name for name in variables if environment.get(name, "") not in NONE), None)
    names = environment[given].split(",") if given is not None else []
    if given is None or len(names) < count:
        return VisibleDevices(given or variables[0], tuple(map(str, range(count))))
    return VisibleDevices(given, tuple(names[:count]))
