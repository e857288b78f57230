"""The meters of a node's energy: RAPL's counters, accelerators' counters, and integrated power.

RAPL's counters (``/sys/class/powercap``) are Intel's and AMD's own. Since Linux 5.10 they are
readable by root alone unless a site says otherwise (CVE-2020-8694).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from aiperf_hpc.system.accelerators.source import AcceleratorSource, Reading
from aiperf_hpc.system.tools import ROOT, AbsentError, entries, number_of, text_of
from aiperf_hpc.telemetry.values import Meter, Part

LONGEST_GAP: Final = 5.0
"""Seconds between two readings of power, where it is read once a second, from which on what was
between them is not covered."""
LONGEST_WRAP: Final = 120.0
"""Seconds in which no counter of RAPL begins anew twice: it takes 262 kJ, in 120 s 2.2 kW."""


class EnergyMeter(NamedTuple):
    """A meter of energy."""

    meter: Meter
    energy: Counter | Trapezoid
    """The energy by its readings."""


def zone_meter(zone: Zone) -> EnergyMeter:
    """Return the meter of a zone of RAPL."""
    meter = Meter(part=zone.part, name=zone.name, source="RAPL", label="measured")
    return EnergyMeter(meter, Counter(1e-6, zone.greatest, LONGEST_WRAP))


def accelerator_meters(
    source: AcceleratorSource, first: Sequence[Reading], every: float
) -> dict[int, EnergyMeter]:
    """Return meters of the accelerators that have an energy counter or power, by their place.

    Args:
        source: the accelerators' source.
        first: the first reading of each, which decides.
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
    """A counter of energy in microjoules."""

    name: str
    """Such as ``package-0``, or ``package-0 dram``."""
    part: Part
    path: Path
    greatest: int
    """The value after which the counter begins anew at 0."""

    def read(self) -> int:
        """Return the counter. Raises OSError and ValueError."""
        return number_of(self.path)


def rapl_zones(root: Path = ROOT) -> list[Zone]:
    """Return the zones whose energies add up: each package, and memory where it is told apart.

    Cores and graphics are in their package; memory is not. The whole platform, which few have, has
    all of them in it.

    Raises:
        AbsentError: there is none, or none that may be read.
        OSError, ValueError: the kernel's files are not as they should be.
    """
    # Not intel-rapl-mmio, which counts the same package again.
    found = [
        zone
        for package in entries(root / "sys/class/powercap")
        if package.name.startswith("intel-rapl:") and package.name.count(":") == 1
        for zone in _zones(package)
    ]
    if not found:
        raise AbsentError("the kernel shows no counters of RAPL")
    try:
        for zone in found:
            zone.read()
    except PermissionError:
        raise AbsentError(
            f"{found[0].path}: Permission denied; root may let others read it"
        ) from None
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
    """The energy since the previous call of ``take``."""

    _joules = _seconds = 0.0

    def take(self) -> tuple[float, float]:
        """Return the joules since the last time, and how many seconds they cover."""
        taken = self._joules, self._seconds
        self._joules = self._seconds = 0.0
        return taken


class Counter(_Energy):
    """The energy by a counter that begins anew after its greatest value."""

    def __init__(
        self, joules_each: float, greatest: int | None = None, longest: float = math.inf
    ) -> None:
        """Begin without a reading.

        Args:
            joules_each: what one of the counter's units is.
            greatest: the value after which it begins anew at 0; None of one that never does.
            longest: seconds in which it surely does so once at most; what was between two readings
                further apart is not known.
        """
        self._joules_each = joules_each
        self._greatest = greatest
        self._longest = longest
        self._last: tuple[float, int] | None = None

    def read(self, now: float, value: int | None) -> None:
        """Take a reading at ``now``, in monotonic seconds; None if it failed.

        One that is less than the last has wrapped round. Where it never does it was reset, as by
        a driver that was loaded again, and what it had counted meanwhile is not known.
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
    """The energy by readings of power, which is taken to change evenly between two of them."""

    def __init__(self, longest: float) -> None:
        """Begin without a reading.

        Args:
            longest: seconds between two readings from which on what was between is not known.
        """
        self._longest = longest
        self._last: tuple[float, float] | None = None

    def read(self, now: float, watts: float | None) -> None:
        """Take a reading at ``now``, in monotonic seconds; None if it failed.

        Nothing is known from then until the next one.
        """
        if self._last is not None and watts is not None:
            then, before = self._last
            passed = now - then
            if passed <= self._longest:
                self._joules += 0.5 * (before + watts) * passed
                self._seconds += passed
        self._last = None if watts is None else (now, watts)
