"""The recorded values of telemetry. ``absent`` has the reasons for values that are None."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from aiperf_hpc.system.description import AcceleratorName
from aiperf_hpc.trial import Value

Amount = Annotated[float, Field(ge=0.0, le=1e18, allow_inf_nan=False)]
"""A nonnegative amount, such as a number of bytes; no node has an exabyte."""
Energy = Annotated[float, Field(ge=0.0, le=1e12, allow_inf_nan=False)]
"""Joules or seconds of one meter in one sample, at most a megawatt for eleven days. In thousandths,
the sum over all meters of a node fits into 64-bit integers."""
MOST_PARTS = 4_096
"""Maximum number of meters or accelerators of a node."""
Signed = Annotated[float, Field(allow_inf_nan=False)]


class Part(StrEnum):
    """The parts of a node whose energy is recorded separately."""

    ACCELERATORS = "accelerators"
    PROCESSORS = "processors"
    MEMORY = "memory"


Label = Literal["measured", "estimated", "absent"]
"""Quality of an energy value.

Measured: from an energy counter, or from power read at least once per second. Estimated: from power
read less often, or for only some of the components. Absent: not available.
"""


class Meter(Value):
    """An energy meter."""

    part: Part
    name: str
    """Name of the measured component, such as ``NVIDIA 0`` or ``package-1``."""
    source: str
    """Source of the energy value, e.g. ``RAPL``."""
    label: Literal["measured", "estimated"]


class AcceleratorUse(Value):
    """Use of a node's accelerators. Each field has one value per accelerator, in order."""

    utilization: tuple[Amount | None, ...] = ()
    """Mean utilization: percentage of time with an active kernel."""
    memory: tuple[Amount | None, ...] = ()
    """Last reading of the used memory in bytes."""
    watts: tuple[Amount | None, ...] = ()
    """Mean power in watts."""
    celsius: tuple[Signed | None, ...] = ()
    """Maximum temperature in degrees Celsius."""
    mhz: tuple[Amount | None, ...] = ()
    """Mean clock of the compute units in MHz."""
    memory_mhz: tuple[Amount | None, ...] = ()
    """Mean memory clock in MHz."""


class NodeUse(Value):
    """Use of a node in an interval; transferred bytes are those of the interval."""

    cpu: Amount | None = None
    """Busy time of all logical CPUs in percent."""
    processes_cpu: Amount | None = None
    """CPU time of the run's processes in percent of one core: 200 for two busy cores."""
    processes_memory: Amount | None = None
    """Sum of the resident set sizes of the run's processes in bytes; shared pages count in each."""
    memory: Amount | None = None
    """Unavailable memory of the node in bytes, used by any process."""
    disk_read: Amount | None = None
    """Bytes read from all block devices."""
    disk_written: Amount | None = None
    network_received: Amount | None = None
    """Bytes received by all network interfaces except the loopback."""
    network_sent: Amount | None = None
    fabric_received: Amount | None = None
    """Bytes received through verbs by InfiniBand, RoCE or Omni-Path ports."""
    fabric_sent: Amount | None = None


class Equipment(Value):
    """Description of a sampler's node: accelerators, energy meters and missing values."""

    host: str
    seconds: Amount
    """Seconds between two samples."""
    accelerators: Annotated[tuple[AcceleratorName, ...], Field(max_length=MOST_PARTS)] = ()
    meters: Annotated[tuple[Meter, ...], Field(max_length=MOST_PARTS)] = ()
    absent: dict[str, str] = {}
    """Reasons for missing values, by name."""


class TelemetrySample(Value):
    """Use and energy of a node since the previous sample."""

    seconds: Amount
    """Duration of the interval, which ends when the sample was taken."""
    node: NodeUse
    accelerators: AcceleratorUse = AcceleratorUse()
    joules: tuple[Energy, ...] = ()
    """Energy of each meter of the equipment, in order."""
    covered: tuple[Energy, ...] = ()
    """Seconds covered by the energy of each meter."""
    cpu_seconds: Amount = 0.0
    """CPU time of the sampler's thread in seconds, without that of programs it started."""
    absent: dict[str, str] = {}
    """Newly missing values with the reasons; the reason is empty for a value available again."""


def known_values(values: Iterable[float | None]) -> list[float]:
    """Return the values that were reported."""
    return [value for value in values if value is not None]
