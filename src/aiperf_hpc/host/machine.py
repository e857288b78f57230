"""This machine's memory, processor and caches, and the variables that select its accelerators."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self

import psutil


def available_bytes(share: int = 1) -> int:
    """Return the bytes of memory that one of ``share`` processes of this machine may take now.

    The smaller of what the machine says is available and, in a control group, what its limit
    leaves.
    """
    available = psutil.virtual_memory().available
    limit = _cgroup_limit()
    return min(available, limit if limit is not None else available) // share


def cpu_model() -> str:
    """Return the name of this machine's processor, or of its architecture where it says no more."""
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


def last_level_cache_bytes() -> int | None:
    """Return the size of the largest cache of the first core; None where the kernel hides it."""
    sizes = [
        int(path.read_text("ascii").strip().removesuffix("K")) * 2**10
        for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    ]
    return max(sizes, default=None)


def _cgroup_limit() -> int | None:
    files = (
        (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
        (
            Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
            Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
        ),
    )
    for limit, used in files:
        if limit.exists() and used.exists() and limit.read_text("utf-8").strip() != "max":
            return max(0, int(limit.read_text("utf-8")) - int(used.read_text("utf-8")))
    return None


VARIABLES: Final = {
    "NVIDIA": ("CUDA_VISIBLE_DEVICES",),
    "AMD": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "Huawei": ("ASCEND_RT_VISIBLE_DEVICES",),
}
"""Each vendor's, the one that is set where none is first. AMD's are read one after the other, each
of what the one before has left."""
BOUND: Final = "AIPERF_ACCELERATOR"
"""The variable that keeps which one a process was bound to, as ``str`` of it writes it."""
NONE: Final = frozenset({"", "-1", "NoDevFiles"})
"""Values for no accelerator at all; the last is of a scheduler."""


class VisibleDevices(NamedTuple):
    """Accelerators of one node, as a variable names them."""

    variable: str
    names: tuple[str, ...]
    """Numbers or unique identifiers, in the order in which frameworks count them."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return those of ``VARIABLE=NAME,NAME``, as ``str`` writes them."""
        variable, _, names = text.partition("=")
        return cls(variable, tuple(names.split(",")))

    def __str__(self) -> str:
        return f"{self.variable}={','.join(self.names)}"


def devices_seen(vendor: str, count: int, environment: Mapping[str, str]) -> VisibleDevices:
    """Return the names of the accelerators that a framework counts.

    Args:
        vendor: whose they are.
        count: how many the framework sees.
        environment: in which it was asked.
    """
    variables = VARIABLES[vendor]
    given = next((name for name in variables if environment.get(name, "") not in NONE), None)
    names = environment[given].split(",") if given is not None else []
    if given is None or len(names) < count:
        return VisibleDevices(given or variables[0], tuple(map(str, range(count))))
    return VisibleDevices(given, tuple(names[:count]))
