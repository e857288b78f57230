"""The limits of the control groups that this process is in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from aiperf_hpc.system.kernel_files import ROOT, text_of, text_or_none

_UNLIMITED = 2**60
"""From here on a limit in bytes is the older interface's word for none."""


def memory_limit(root: Path = ROOT) -> int | None:
    """Return the least limit of memory in bytes; None where there is none."""
    limits = [
        *_limits(root, "", "memory.max", lambda text: float(text.partition(" ")[0])),
        *_limits(root, "memory", "memory.limit_in_bytes", float),
    ]
    return int(min(limits)) if limits and min(limits) < _UNLIMITED else None


def quota_cores(root: Path = ROOT) -> float | None:
    """Return how many cores' time may be used at most; None where there is no quota."""
    return min([*_limits(root, "", "cpu.max", _share), *_older_quotas(root)], default=None)


def _older_quotas(root: Path) -> Iterator[float]:
    for folder in _folders(root, "cpu"):
        quota = text_or_none(folder / "cpu.cfs_quota_us")
        period = text_or_none(folder / "cpu.cfs_period_us")
        if quota and period and int(quota) > 0:
            yield int(quota) / int(period)


def _share(text: str) -> float:
    quota, period = text.split()
    return int(quota) / int(period)


def _limits(
    root: Path, controller: str, name: str, read: Callable[[str], float]
) -> Iterator[float]:
    """Yield what the groups say, but for ``max``."""
    for folder in _folders(root, controller):
        said = text_or_none(folder / name)
        if said and not said.startswith("max"):
            yield read(said)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folder of this process's group and those above; "" is the unified hierarchy's."""
    top = root / "sys/fs/cgroup" / controller
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controller not in controllers.split(","):
            continue
        # In a container the group's own folder may be mounted as the top: then it is not below.
        own = top / group.strip("/")
        yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(top))
