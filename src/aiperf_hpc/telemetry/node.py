"""The use of a node: processors, memory, disks, networks, and the run's processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

import psutil

from aiperf_hpc.system.accelerators.source import RepeatedProbe
from aiperf_hpc.system.tools import ROOT, AbsentError, entries, number_of
from aiperf_hpc.telemetry.values import NodeUse

LOOPBACK: Final = "lo"
_WORD_BYTES: Final = 4
"""Unit of a port's data counters in bytes, as defined by InfiniBand."""


class Processes(Protocol):
    """The processes of a run on this node."""

    def totals(self) -> tuple[float, int]:
        """Return their total CPU seconds and the sum of their resident set sizes in bytes."""


class NodeMeter:
    """Measures the node's use since the previous sample."""

    def __init__(self, processes: Processes, root: Path = ROOT) -> None:
        """Read the counters for the first time."""
        self._processes = processes
        self._root = root
        self.probe = RepeatedProbe((OSError, ValueError, RuntimeError, psutil.Error))
        self._counters: Mapping[str, Callable[[], Mapping[str, float]]] = {
            "cpu": _cpu_times,
            "processes": self._totals,
            "disk": _disk,
            "network": _network,
            "fabric": self._fabric,
        }
        self._before = self._read()

    def take(self, seconds: float) -> NodeUse:
        """Return the node's use in the ``seconds`` since the previous sample."""
        read = self.probe.read
        now, before = self._read(), self._before
        self._before = now
        # A counter decreases if a process or a device disappears.
        passed = {k: max(0.0, v - before[k]) for k, v in now.items() if k in before}
        busy, idle = passed.pop("busy", 0.0), passed.pop("idle", 0.0)
        processes = passed.pop("processes_cpu", None)
        passed.pop("processes_memory", None)
        known = processes is not None and seconds > 0.0
        return NodeUse(
            cpu=round(100.0 * busy / (busy + idle), 2) if busy + idle > 0.0 else None,
            processes_cpu=round(100.0 * (processes or 0.0) / seconds, 2) if known else None,
            processes_memory=now.get("processes_memory"),
            memory=read("memory", _memory),
            **passed,
        )

    def _read(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, read in self._counters.items():
            found |= self.probe.read(name, read) or {}
        return found

    def _totals(self) -> dict[str, float]:
        seconds, memory = self._processes.totals()
        return {"processes_cpu": seconds, "processes_memory": float(memory)}

    def _fabric(self) -> dict[str, float]:
        ports = [
            port / "counters"
            for adapter in entries(self._root / "sys/class/infiniband")
            for port in entries(adapter / "ports")
        ]
        if not ports:
            raise AbsentError("the node has no port of InfiniBand, RoCE or Omni-Path")
        received = sum(number_of(port / "port_rcv_data") for port in ports)
        sent = sum(number_of(port / "port_xmit_data") for port in ports)
        return {
            "fabric_received": float(received * _WORD_BYTES),
            "fabric_sent": float(sent * _WORD_BYTES),
        }


def _cpu_times() -> dict[str, float]:
    """Return the busy and idle seconds of all logical CPUs; I/O wait counts as idle."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # User time already includes guest time.
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return {"busy": sum(times) - guests - idle, "idle": idle}


def _memory() -> float:
    memory = psutil.virtual_memory()
    return float(memory.total - memory.available)


def _disk() -> dict[str, float]:
    counted = psutil.disk_io_counters()
    if counted is None:
        raise AbsentError("the kernel reports no block device")
    return {"disk_read": float(counted.read_bytes), "disk_written": float(counted.write_bytes)}


def _network() -> dict[str, float]:
    counted = psutil.net_io_counters(pernic=True)
    others = [each for name, each in counted.items() if name != LOOPBACK]
    if not others:
        raise AbsentError("the node has no network interface but the loopback")
    return {
        "network_received": float(sum(each.bytes_recv for each in others)),
        "network_sent": float(sum(each.bytes_sent for each in others)),
    }
