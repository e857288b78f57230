"""What this machine has for those who share it."""

from __future__ import annotations

import platform
from pathlib import Path

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
