"""The energy meters of a node: RAPL counters, accelerators' counters, and integrated power.

RAPL counters (``/sys/class/powercap``) exist on Intel and AMD processors. Since Linux 5.10 only
root can read them unless the site changes their permissions (CVE-2020-8694).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from aiperf_hpc.errors import raising
from aiperf_hpc.system.accelerators.source import AcceleratorReading, AcceleratorSource
from aiperf_hpc.system.tools import ROOT, AbsentError, entries, number_of, text_of
from aiperf_hpc.telemetry.values import Meter, Part

LONGEST_GAP: Final = 5.0
"""Maximum interval in seconds between two power readings at one reading per second; the energy of a
longer gap is not counted."""
LONGEST_WRAP: Final = 120.0
"""Seconds in which a RAPL counter wraps at most once: it wraps after 262 kJ, 2.2 kW for 120 s."""


class EnergyMeter(NamedTuple):
    """An energy meter."""

    meter: Meter
    energy: Counter | Trapezoid
    """Energy computed from the readings."""


def zone_meter(zone: Zone) -> EnergyMeter:
    """Return the meter of a RAPL zone."""
    meter = Meter(part=zone.part, name=zone.name, source="RAPL", label="measured")
    return EnergyMeter(meter, Counter(1e-6, zone.greatest, LONGEST_WRAP))


def accelerator_meters(
    source: AcceleratorSource, first: Sequence[AcceleratorReading], every: float
) -> dict[int, EnergyMeter]:
    """Return the meters of the accelerators with an energy counter or power sensor, by position.

    Args:
        source: source of the accelerators.
        first: first reading of each accelerator, which determines its meter.
        every: seconds between two readings.
    """
    return {
        number: _accelerator_meter(source, number, reading.millijoules is not None, every)
        for number, reading in enumerate(first)
        if reading.millijoules is not None or reading.watts is not None
    }


def _accelerator_meter(
    source: AcceleratorSource, number: int, counts: bool, every: float
) -> EnergyMeter:
    often = counts or every <= 1.0
    how = "energy counter" if counts else "power"
    rarely = "" if often else f", read every {every:g} s"
    meter = Meter(
        part=Part.ACCELERATORS,
        name=str(source.names[number]),
        source=f"{source.tool}: {how}{rarely}",
        label="measured" if often else "estimated",
    )
    power = Trapezoid(max(LONGEST_GAP, 2.5 * every))
    return EnergyMeter(meter, Counter(1e-3) if counts else power)


class Zone(NamedTuple):
    """A RAPL zone: an energy counter in microjoules."""

    name: str
    """Name of the zone, such as ``package-0`` or ``package-0 dram``."""
    part: Part
    path: Path
    greatest: int
    """Maximum value of the counter, after which it wraps to 0."""

    def read(self) -> int:
        """Return the counter's value. Raises OSError and ValueError."""
        return number_of(self.path)


def rapl_zones(root: Path = ROOT) -> list[Zone]:
    """Return the disjoint zones: each package, and memory if it has its own zone.

    A package includes its cores and graphics but not memory. The platform zone, which is rare,
    includes everything and is not used.

    Raises:
        AbsentError: there is no zone, or reading is not permitted.
        OSError, ValueError: the kernel's files have unexpected content.
    """
    # Not intel-rapl-mmio, which duplicates the package.
    found = [
        zone
        for package in entries(root / "sys/class/powercap")
        if package.name.startswith("intel-rapl:") and package.name.count(":") == 1
        for zone in _zones(package)
    ]
    if not found:
        raise AbsentError("the kernel provides no RAPL counters")
    denied = AbsentError(f"{found[0].path}: Permission denied; root may let others read it")
    with raising(denied, PermissionError):
        for zone in found:
            zone.read()
    return found


def _zones(package: Path) -> Iterator[Zone]:
    name = text_of(package / "name")
    if name.startswith("package"):
        yield _zone(package, name, Part.PROCESSORS)
        for below in entries(package):
            if below.name.startswith(f"{package.name}:") and text_of(below / "name") == "dram":
                yield _zone(below, f"{name} dram", Part.MEMORY)


def _zone(folder: Path, name: str, part: Part) -> Zone:
    return Zone(name, part, folder / "energy_uj", number_of(folder / "max_energy_range_uj"))


class _Energy:
    """Energy since the previous call of ``take``."""

    _joules = _seconds = 0.0

    def take(self) -> tuple[float, float]:
        """Return the joules since the previous call, and the number of seconds that they cover."""
        taken = self._joules, self._seconds
        self._joules = self._seconds = 0.0
        return taken


class Counter(_Energy):
    """Energy from a counter that may wrap."""

    def __init__(
        self, joules_each: float, greatest: int | None = None, longest: float = math.inf
    ) -> None:
        """Create a counter without a reading.

        Args:
            joules_each: unit of the counter in joules.
            greatest: maximum value, after which the counter wraps to 0; None if it never wraps.
            longest: seconds in which the counter wraps at most once. The energy between two
                readings further apart is unknown and not counted.
        """
        self._joules_each = joules_each
        self._greatest = greatest
        self._longest = longest
        self._last: tuple[float, int] | None = None

    def read(self, now: float, value: int | None) -> None:
        """Add a reading at ``now``, in monotonic seconds; None if it failed.

        A value below the previous one means that the counter wrapped. If it never wraps, it was
        reset, as by reloading the driver, and the energy since the previous reading is unknown.
        """
        if value is None:
            return
        if self._last is not None:
            then, before = self._last
            passed = value - before
            if passed < 0 and self._greatest is not None:
                passed += self._greatest + 1
            if passed >= 0 and now - then <= self._longest:
                self._joules += passed * self._joules_each
                self._seconds += now - then
        self._last = now, value


class Trapezoid(_Energy):
    """Energy from power readings by the trapezoidal rule."""

    def __init__(self, longest: float) -> None:
        """Create an integral without a reading.

        Args:
            longest: maximum seconds between two readings; longer gaps are not counted.
        """
        self._longest = longest
        self._last: tuple[float, float] | None = None

    def read(self, now: float, watts: float | None) -> None:
        """Add a reading at ``now``, in monotonic seconds; None if it failed.

        The intervals before and after a failed reading are not counted.
        """
        if self._last is not None and watts is not None:
            then, before = self._last
            passed = now - then
            if passed <= self._longest:
                self._joules += 0.5 * (before + watts) * passed
                self._seconds += passed
        self._last = None if watts is None else (now, watts)
