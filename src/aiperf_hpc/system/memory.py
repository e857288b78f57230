"""A node's memory, and the limits of this process's control groups."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from aiperf_hpc.system.description import Memory, NumaNode
from aiperf_hpc.system.tools import ROOT, AbsentError, Probe, entries, text_of, text_or_none

_KIB = re.compile(r"(\w+):\s*(\d+) kB")
_NODE = re.compile(r"node(\d+)")


def memory(root: Path = ROOT) -> Memory:
    """Return the memory of the machine whose ``/proc`` and ``/sys`` are below ``root``.

    Raises:
        OSError, KeyError: the kernel does not tell how much there is.
    """
    sizes = _sizes(root / "proc/meminfo")
    probe = Probe(OSError, ValueError)
    return Memory(
        total_bytes=sizes["MemTotal"],
        swap_bytes=sizes.get("SwapTotal", 0),
        limit_bytes=probe.read("limit_bytes", lambda: memory_limit(root)),
        numa=probe.read("numa", lambda: tuple(_numa(root))) or (),
        absent=probe.absent,
    )


def _sizes(path: Path) -> dict[str, int]:
    """Return what a ``meminfo`` says, in bytes."""
    return {name: int(size) * 2**10 for name, size in _KIB.findall(text_of(path))}


def _numa(root: Path) -> Iterator[NumaNode]:
    found = []
    for folder in entries(root / "sys/devices/system/node"):
        if number := _NODE.fullmatch(folder.name):
            size = _sizes(folder / "meminfo").get("MemTotal")
            cpus = text_of(folder / "cpulist")
            found.append(NumaNode(number=int(number[1]), cpus=cpus, memory_bytes=size or None))
    if not found:
        raise AbsentError("the kernel tells of no NUMA nodes")
    yield from sorted(found, key=lambda node: node.number)


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
