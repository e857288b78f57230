"""The memory of a node, by what the kernel tells of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from aiperf_hpc.system.control_groups import memory_limit
from aiperf_hpc.system.description import Memory, NumaNode
from aiperf_hpc.system.kernel_files import ROOT, entries, text_of
from aiperf_hpc.system.tools import AbsentError, Question

_KIB = re.compile(r"(\w+):\s*(\d+) kB")
_NODE = re.compile(r"node(\d+)")


def memory(root: Path = ROOT) -> Memory:
    """Return the memory of the machine whose ``/proc`` and ``/sys`` are below ``root``.

    Raises:
        OSError, KeyError: the kernel does not tell how much there is.
    """
    sizes = _sizes(root / "proc/meminfo")
    question = Question(OSError, ValueError)
    return Memory(
        total_bytes=sizes["MemTotal"],
        swap_bytes=sizes.get("SwapTotal", 0),
        limit_bytes=question.ask("limit_bytes", lambda: memory_limit(root)),
        numa=question.ask("numa", lambda: tuple(_numa(root))) or (),
        absent=question.absent,
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
