"""The telemetry sampler: one per host, reads every second and records at a longer interval.

It reads the use of the node's processors, memory, disks and networks, the run's processes, and the
accelerators.
"""

from __future__ import annotations

import errno
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import fmean
from typing import Final, Protocol

import psutil

from aiperf_hpc.clock import Clock
from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.host.processes import in_background
from aiperf_hpc.system.accelerators import VENDORS
from aiperf_hpc.system.accelerators.source import (
    AcceleratorReading,
    AcceleratorSource,
    RepeatedProbe,
)
from aiperf_hpc.system.tools import ROOT, AbsentError, entries, number_of
from aiperf_hpc.telemetry.energy import (
    Counter,
    EnergyMeter,
    Zone,
    accelerator_meters,
    rapl_zones,
    zone_meter,
)
from aiperf_hpc.telemetry.values import (
    AcceleratorUse,
    Equipment,
    NodeUse,
    TelemetrySample,
    known_values,
)

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
        self.probe = RepeatedProbe(OSError, ValueError, RuntimeError, psutil.Error)
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


READ_SECONDS: Final = 1.0
"""Seconds between two readings of cheap values; at most 1 for energy integrated from power."""


class _Accelerators:
    """The accelerators of one source, with their readings since the last sample."""

    def __init__(self, source: AcceleratorSource, seconds: float, now: float) -> None:
        self.source = source
        self.every = READ_SECONDS if source.cheap else seconds
        first = source.read()
        self.meters = accelerator_meters(source, first, self.every)
        self._readings: list[Sequence[AcceleratorReading]] = []
        self._take_in(now, first)

    def read(self, now: float) -> None:
        """Read all accelerators; if that fails, add empty readings."""
        told = self.source.probe.read(self.source.tool, self.source.read)
        self._take_in(now, told or [AcceleratorReading()] * len(self.source.names))

    def _take_in(self, now: float, readings: Sequence[AcceleratorReading]) -> None:
        for number, (_, energy) in self.meters.items():
            if isinstance(energy, Counter):
                energy.read(now, readings[number].millijoules)
            else:
                energy.read(now, readings[number].watts)
        self._readings.append(readings)

    def take(self) -> dict[str, list[float | None]]:
        """Return the columns of a sample, and start a new one."""
        read = list(zip(*self._readings, strict=True))
        columns = {
            column: [_mean([getattr(reading, column) for reading in each]) for each in read]
            for column in ("utilization", "watts", "mhz", "memory_mhz")
        }
        columns["memory"] = [each[-1].memory for each in read]
        columns["celsius"] = [
            max(known_values(r.celsius for r in each), default=None) for each in read
        ]
        self._readings.clear()
        self.source.probe.reset()
        return columns


class Sampler:
    """Reads cheap values once per second, and all values for each sample."""

    def __init__(
        self,
        processes: Processes,
        sources: Sequence[AcceleratorSource],
        *,
        seconds: float,
        clock: Clock,
        absent: Mapping[str, str],
        root: Path = ROOT,
    ) -> None:
        """Take the first readings.

        Args:
            processes: processes of the run on this node.
            sources: sources of the node's accelerators.
            seconds: seconds between two samples.
            clock: clock for the integration of energy.
            absent: reasons for missing sources, by vendor.
            root: parent folder of ``/sys``.
        """
        self._clock = clock
        self._begun = now = clock.monotonic()
        self._absent = dict(absent)
        self._node = NodeMeter(processes, root)
        self._rapl = RepeatedProbe(OSError, ValueError)
        zones = self._rapl.read("RAPL", lambda: rapl_zones(root)) or list[Zone]()
        self._zones = [(zone, zone_meter(zone)) for zone in zones]
        self._accelerators = list(self._opened(sources, seconds, now))
        self._read_zones(now)
        self._cpu_seconds = time.thread_time()
        self._told = self._reasons()
        self.equipment = Equipment(
            host=socket.gethostname(),
            seconds=seconds,
            accelerators=tuple(n for a in self._accelerators for n in a.source.names),
            meters=tuple(meter.meter for meter in self._meters),
            absent=self._told,
        )

    def _opened(
        self, sources: Sequence[AcceleratorSource], seconds: float, now: float
    ) -> Iterator[_Accelerators]:
        for source in sources:
            try:
                yield _Accelerators(source, seconds, now)
            except AbsentError as error:
                self._absent[source.tool] = str(error)

    @property
    def _meters(self) -> list[EnergyMeter]:
        accelerators = (m for a in self._accelerators for m in a.meters.values())
        return [*accelerators, *(meter for _, meter in self._zones)]

    @property
    def quick(self) -> bool:
        """Whether there are values to read between two samples."""
        return bool(self._zones) or any(a.source.cheap for a in self._accelerators)

    def read(self) -> None:
        """Read the cheap values."""
        self._read([each for each in self._accelerators if each.source.cheap])

    def take(self) -> TelemetrySample:
        """Read all values and return the sample since the previous call."""
        self._read(self._accelerators)
        now = self._clock.monotonic()
        seconds, self._begun = now - self._begun, now
        node = self._node.take(seconds)
        columns = [each.take() for each in self._accelerators]
        energy = [each.energy.take() for each in self._meters]
        self._node.probe.reset()
        self._rapl.reset()
        before, self._told = self._told, self._reasons()
        spent, self._cpu_seconds = self._cpu_seconds, time.thread_time()
        return TelemetrySample(
            seconds=seconds,
            node=node,
            accelerators=_joined(columns),
            joules=tuple(round(joules, 3) for joules, _ in energy),
            covered=tuple(round(covered, 3) for _, covered in energy),
            cpu_seconds=max(0.0, round(self._cpu_seconds - spent, 6)),
            absent=_changes(before, self._told),
        )

    def _read(self, accelerators: Sequence[_Accelerators]) -> None:
        for each in accelerators:
            each.read(self._clock.monotonic())
        self._read_zones(self._clock.monotonic())

    def _read_zones(self, now: float) -> None:
        for zone, (_, energy) in self._zones:
            energy.read(now, self._rapl.read(f"{zone.name}: energy", zone.read))

    def _reasons(self) -> dict[str, str]:
        probes = [self._node.probe, self._rapl, *(a.source.probe for a in self._accelerators)]
        return self._absent | {k: v for probe in probes for k, v in probe.absent.items()}


@contextmanager
def sampler(
    processes: Processes, *, seconds: float, clock: Clock, root: Path = ROOT
) -> Iterator[Sampler]:
    """Create a sampler of this node; the tools of all vendors are open during the block."""
    absent: dict[str, str] = {}
    with ExitStack() as stack:
        sources = []
        for vendor in VENDORS:
            try:
                sources.append(stack.enter_context(vendor.source()))
            except AbsentError as error:
                absent[vendor.name] = str(error)
        yield Sampler(processes, sources, seconds=seconds, clock=clock, absent=absent, root=root)


def _joined(columns: Sequence[Mapping[str, Sequence[float | None]]]) -> AcceleratorUse:
    """Concatenate the columns of all sources."""
    names = AcceleratorUse.model_fields
    return AcceleratorUse(**{name: tuple(v for c in columns for v in c[name]) for name in names})


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return the new reasons, and an empty reason for each value that is available again."""
    new = {name: why for name, why in now.items() if before.get(name) != why}
    return new | {name: "" for name in before if name not in now}


def _mean(values: Iterable[float | None]) -> float | None:
    known = known_values(values)
    return round(fmean(known), 2) if known else None


END_SECONDS: Final = 15.0
"""Maximum wait for the last sample at the end of a process, in seconds. A vendor's program may run
for 10 s, and one that hangs must not block the process."""


Record = Callable[[Equipment | TelemetrySample], None]
"""Function that records telemetry. Raises AIPerfError if it cannot."""


@contextmanager
def sampled(
    name: str,
    processes: Processes,
    *,
    seconds: float,
    clock: Clock,
    record: Record,
) -> Iterator[None]:
    """Sample this node in a separate thread during the block, unless another process does.

    If that process ends, this one takes over. Errors are reported on standard error and in a last
    record, and never end the block.

    Args:
        name: name shared by all processes of the run and unique to the run.
        processes: processes of the run on this node.
        seconds: seconds between two samples.
        clock: clock for the integration of energy.
        record: function that records telemetry, called in the thread.
    """

    def work(over: threading.Event) -> None:
        try:
            while (claim := claim_host(name)) is None:
                if over.wait(seconds):
                    return
            with claim, sampler(processes, seconds=seconds, clock=clock) as own:
                record(own.equipment)
                sample_until(own, over, seconds=seconds, clock=clock, record=record)
        except AIPerfError as error:
            sys.stderr.write(f"aiperf: no more telemetry: {error}\n")
        except Exception as error:  # noqa: BLE001 -- reported; the benchmark continues without it
            traceback.print_exc()
            why = f"unexpected {type(error).__name__}: {error}"
            with suppress(AIPerfError):  # The error was already reported.
                host = socket.gethostname()
                record(Equipment(host=host, seconds=seconds, absent={"telemetry": why}))

    with in_background(work, "telemetry", END_SECONDS):
        yield


def sample_until(
    own: Sampler, over: threading.Event, *, seconds: float, clock: Clock, record: Record
) -> None:
    """Read and record at fixed intervals until ``over``; then record the last sample.

    Missed readings and samples, as during a wait for storage, are skipped.
    """
    read = clock.monotonic()
    due = read + seconds
    while True:
        now = clock.monotonic()
        read = min(max(read + READ_SECONDS, now), due) if own.quick else due
        if over.wait(max(0.0, read - now)):
            break
        if read < due:
            own.read()
        else:
            record(own.take())
            due += seconds * (1 + max(0.0, clock.monotonic() - due) // seconds)
    record(own.take())


def claim_host(name: str) -> socket.socket | None:
    """Claim the host under a name; return the claim, or None if another process holds it.

    The claim is a socket in Linux's abstract namespace, which is released on close or exit and
    leaves no file. Containers may have separate namespaces.
    """
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0aiperf-telemetry-{name}")
    except OSError as error:
        claim.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return claim
