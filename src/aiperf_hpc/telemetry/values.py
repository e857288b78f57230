"""The recorded values of telemetry. A value that is None has its reason under its name."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from aiperf_hpc.system.description import AcceleratorName
from aiperf_hpc.trial import Value

Amount = Annotated[float, Field(ge=0.0, le=1e18, allow_inf_nan=False)]
"""An amount, such as bytes; no node has an exabyte."""
Energy = Annotated[float, Field(ge=0.0, le=1e12, allow_inf_nan=False)]
"""Joules or seconds of one meter in one sample: a megawatt for eleven days. As many thousandths,
summed over all meters of a node, are whole numbers of 64 bits."""
MOST_PARTS = 4_096
"""Meters or accelerators of a node."""
Signed = Annotated[float, Field(allow_inf_nan=False)]


class Part(StrEnum):
    """The parts of a node whose energy is recorded separately."""

    ACCELERATORS = "accelerators"
    PROCESSORS = "processors"
    MEMORY = "memory"


Label = Literal["measured", "estimated", "absent"]
"""Measured: by a counter of energy, or from power that was read at least once a second.
Estimated: from power that was read less often, or of a part of what there is. Absent: not at all.
"""


class Meter(Value):
    """A meter of energy."""

    part: Part
    name: str
    """The name of what it meters, such as ``NVIDIA 0`` or ``package-1``."""
    source: str
    """The source of the energy, e.g. ``RAPL``."""
    label: Literal["measured", "estimated"]


class AcceleratorUse(Value):
    """The use of a node's accelerators: in each field a value per accelerator, in order."""

    utilisation: tuple[Amount | None, ...] = ()
    """Percent of the time in which something ran; the mean of the readings."""
    memory: tuple[Amount | None, ...] = ()
    """Bytes in use, as read last."""
    watts: tuple[Amount | None, ...] = ()
    """The mean power."""
    celsius: tuple[Signed | None, ...] = ()
    """The highest temperature that was read."""
    mhz: tuple[Amount | None, ...] = ()
    """The mean clock of the compute units."""
    memory_mhz: tuple[Amount | None, ...] = ()
    """The mean clock of the memory."""


class NodeUse(Value):
    """What a node did; bytes are those of the interval."""

    cpu: Amount | None = None
    """Percent of all its logical CPUs' time in which they were busy."""
    processes_cpu: Amount | None = None
    """Percent of one core that the run's processes took: 200 for two that were busy."""
    processes_memory: Amount | None = None
    """The sum of their resident sets in bytes; what they share counts for each of them."""
    memory: Amount | None = None
    """Bytes of memory that are not available, whoever has them."""
    disk_read: Amount | None = None
    """Bytes that all its block devices read."""
    disk_written: Amount | None = None
    network_received: Amount | None = None
    """Bytes that its network interfaces received, but for the loopback."""
    network_sent: Amount | None = None
    fabric_received: Amount | None = None
    """Bytes that its ports of InfiniBand, RoCE or Omni-Path received by verbs."""
    fabric_sent: Amount | None = None


class Equipment(Value):
    """What a sampler has to tell of its node."""

    host: str
    seconds: Amount
    """Between two samples."""
    accelerators: Annotated[tuple[AcceleratorName, ...], Field(max_length=MOST_PARTS)] = ()
    meters: Annotated[tuple[Meter, ...], Field(max_length=MOST_PARTS)] = ()
    absent: dict[str, str] = {}
    """Why something is not told, by its name."""


class Sample(Value):
    """What a node did and drew since the sample before."""

    seconds: Amount
    """How long that was; it ends where the sample was taken."""
    node: NodeUse
    accelerators: AcceleratorUse = AcceleratorUse()
    joules: tuple[Energy, ...] = ()
    """By each of the equipment's meters, in order."""
    covered: tuple[Energy, ...] = ()
    """The seconds that the joules of each meter cover."""
    cpu_seconds: Amount = 0.0
    """The processor time that the sampler's own thread took; not that of programs it started."""
    absent: dict[str, str] = {}
    """What is no longer told, and why; empty text for what is told again."""
