"""The meters of a node's energy, and what each of them counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from aiperf_hpc.telemetry.integration import Counter, Trapezoid
from aiperf_hpc.telemetry.rapl import Zone
from aiperf_hpc.telemetry.reading import AcceleratorSource, Asker, Reading
from aiperf_hpc.telemetry.values import Meter, Part

LONGEST_GAP: Final = 5.0
"""Seconds between two readings of power, where it is read once a second, from which on what was
between them is not covered."""
LONGEST_WRAP: Final = 120.0
"""Seconds in which no counter of RAPL begins anew twice: it takes 262 kJ, in 120 s 2.2 kW."""


class ZoneMeter:
    """The energy of one zone of RAPL."""

    def __init__(self, zone: Zone) -> None:
        self.meter = Meter(part=zone.part, name=zone.name, source="RAPL", label="measured")
        self._zone = zone
        self._counter = Counter(1e-6, zone.greatest, LONGEST_WRAP)

    def read(self, now: float, asker: Asker) -> None:
        """Take a reading at ``now``, in monotonic seconds."""
        value = asker.ask(f"{self.meter.name}: energy", self._zone.read)
        if value is not None:
            self._counter.read(now, value)

    def take(self) -> tuple[float, float]:
        """Return the joules since the last time, and the seconds that they cover."""
        return self._counter.take()


class AcceleratorMeter:
    """The energy of one accelerator: by its counter or, where it has none, by its power."""

    def __init__(
        self, source: AcceleratorSource, number: int, first: Reading, every: float
    ) -> None:
        """Choose by the first reading.

        Args:
            source: what tells of the accelerator.
            number: its place among the source's.
            first: what was told of it; a counter or power.
            every: seconds between two readings.
        """
        self._counts = first.millijoules is not None
        self._counter = Counter(1e-3)
        self._power = Trapezoid(max(LONGEST_GAP, 2.5 * every))
        often = self._counts or every <= 1.0
        how = "energy counter" if self._counts else "power"
        rarely = "" if often else f", read every {every:g} s"
        self.meter = Meter(
            part=Part.ACCELERATORS,
            name=str(source.names[number]),
            source=f"{source.tool}: {how}{rarely}",
            label="measured" if often else "estimated",
        )

    def read(self, now: float, reading: Reading) -> None:
        """Take a reading at ``now``, in monotonic seconds."""
        if not self._counts:
            if reading.watts is None:
                self._power.missed()
            else:
                self._power.read(now, reading.watts)
        elif reading.millijoules is not None:
            self._counter.read(now, reading.millijoules)

    def take(self) -> tuple[float, float]:
        """Return the joules since the last time, and the seconds that they cover."""
        return self._counter.take() if self._counts else self._power.take()


class Metered(NamedTuple):
    """The accelerators of a source that have a meter."""

    numbers: Sequence[int]
    """Their places among the source's."""
    meters: Sequence[AcceleratorMeter]


def accelerator_meters(
    source: AcceleratorSource, first: Sequence[Reading], every: float
) -> Metered:
    """Return meters of the accelerators that told a counter of energy, or their power."""
    numbers = [
        number
        for number, reading in enumerate(first)
        if reading.millijoules is not None or reading.watts is not None
    ]
    return Metered(
        numbers, [AcceleratorMeter(source, number, first[number], every) for number in numbers]
    )
