"""Samples of a node with two accelerators and two processors, for journals of small runs."""

from __future__ import annotations

from aiperf_hpc.system.description import AcceleratorName
from aiperf_hpc.telemetry.values import (
    AcceleratorUse,
    Equipment,
    Meter,
    NodeUse,
    Part,
    TelemetrySample,
)

ACCELERATORS = tuple(
    Meter(
        part=Part.ACCELERATORS,
        name=f"NVIDIA {index}",
        source="NVML: energy counter",
        label="measured",
    )
    for index in (0, 1)
)
PACKAGE = Meter(part=Part.PROCESSORS, name="package-0", source="RAPL", label="measured")


def equipment(
    host: str = "n", meters: tuple[Meter, ...] = (*ACCELERATORS, PACKAGE), **absent: str
) -> Equipment:
    """Return what a node has: two accelerators, and by default meters of all its energy."""
    names = tuple(AcceleratorName(vendor="NVIDIA", index=index) for index in (0, 1))
    return Equipment(host=host, seconds=30.0, accelerators=names, meters=meters, absent=absent)


def sample(
    joules: tuple[float, ...] = (12_000.0, 15_000.0, 6_000.0),
    *,
    seconds: float = 30.0,
    covered: tuple[float, ...] | None = None,
    **absent: str,
) -> TelemetrySample:
    """Return what it did in half a minute: 400 and 500 W of accelerators, 200 W of processors."""
    return TelemetrySample(
        seconds=seconds,
        node=NodeUse(
            cpu=25.0,
            processes_cpu=200.0,
            processes_memory=2.0**30,
            memory=2.0**31,
            disk_read=3e6,
            disk_written=6e6,
            network_received=9e6,
            network_sent=12e6,
        ),
        accelerators=AcceleratorUse(
            utilization=(80.0, 100.0),
            memory=(2.0**33, 2.0**34),
            watts=(400.0, 500.0),
            celsius=(61.0, 65.0),
            mhz=(1755.0, 1980.0),
            memory_mhz=(2619.0, 2619.0),
        ),
        joules=joules,
        covered=(seconds,) * len(joules) if covered is None else covered,
        cpu_seconds=0.015,
        absent=absent,
    )
