"""What this machine has for those who share it."""

from __future__ import annotations

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
