"""This machine's memory, processor and caches, and the variables that select its accelerators."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

import psutil

_MEMORY_FILES = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Controller, files of limit and usage, and name of the reclaimable page cache in ``memory.stat``:
cgroup v2 and v1."""


def control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and its parents.

    Args:
        root: folder with the machine's files, ``/`` except in tests.
        controller: controller of cgroup v1, or "" for cgroup v2.

    Raises:
        OSError: the kernel does not list the groups.
    """
    top = root / "sys/fs/cgroup" / controller
    for line in (root / "proc/self/cgroup").read_text("utf-8", errors="replace").splitlines():
        _, controllers, group = line.split(":", 2)
        if controller not in controllers.split(","):
            continue
        # In a container, the group's folder may itself be mounted as the top folder.
        own = top / group.strip("/")
        yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(top))


def remaining_memory(root: Path = Path("/")) -> int | None:
    """Return the memory in bytes that the limits of all groups leave, or None without a limit.

    Inactive page cache counts as free, because the kernel reclaims it at the limit.
    """
    found = []
    for controller, limit, usage, cache in _MEMORY_FILES:
        with suppress(OSError):
            groups = list(control_groups(root, controller))
            found += [_remaining(group, limit, usage, cache) for group in groups]
    return min((each for each in found if each is not None), default=None)


def _remaining(group: Path, limit: str, usage: str, cache: str) -> int | None:
    try:
        most = (group / limit).read_text("ascii").strip()
        if most == "max":
            return None
        used = int((group / usage).read_text("ascii"))
        statistics = (group / "memory.stat").read_text("ascii").split()
    except FileNotFoundError:  # The top group has no limit.
        return None
    reclaimable = dict(zip(statistics[::2], statistics[1::2], strict=True))
    return max(0, int(most) - used + int(reclaimable.get(cache, 0)))


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
