"""Control groups of this process, and the memory that they leave it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

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
