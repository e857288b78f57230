"""A node's telemetry in the journals: its exact energy, and its history at limited resolution.

A run of 512 nodes takes 1.5 million samples per day. The energy of each sample is stored; all other
values are reduced to at most ``MOST_POINTS`` intervals per sampler, which lengthen over time.
"""

from __future__ import annotations

import math
import operator
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Final, NamedTuple

from aiperf_hpc.telemetry.values import Equipment, NodeUse, Part, TelemetrySample, known_values

MOST_POINTS: Final = 240
"""Number of points at which adjacent points are merged in pairs."""

MEANS: Final = (
    "cpu",
    "processes_cpu",
    "processes_memory",
    "memory",
    "utilization",
    "accelerator_memory",
    "celsius",
    "watts",
    "power",
)
"""Values that a point averages. Over accelerators, utilization is the mean, memory and watts are
sums, and the temperature is the maximum. Power is the sum over all meters, each over the time that
it covers."""
SUMS: Final = tuple(name for name in NodeUse.model_fields if name not in MEANS)
"""Values that a point sums up, in bytes."""


Taken = tuple[float, TelemetrySample]
"""A sample with its time in UTC seconds."""


class Point(NamedTuple):
    """The telemetry of one node over a time interval."""

    begin: float
    """Start of the interval, UTC seconds."""
    end: float
    seconds: float
    """Sampled seconds of the interval."""
    values: array[float]
    """Values of ``MEANS`` and ``SUMS``, in order; nan if not reported."""
    utilization: array[float]
    """Utilization of each accelerator in percent; nan if not reported."""
    watts: array[float]
    """Mean power of each accelerator in watts."""

    def get(self, name: str) -> float | None:
        """Return a value of ``MEANS`` or ``SUMS``, or None if it was not reported."""
        value = self.values[_PLACES[name]]
        return None if math.isnan(value) else value

    def rate(self, name: str) -> float | None:
        """Return a value of ``SUMS`` per second, or None if it was not reported."""
        amount = self.get(name)
        return None if amount is None or self.seconds <= 0.0 else amount / self.seconds

    @classmethod
    def of(cls, samples: Sequence[Taken]) -> Point:
        """Return the point of successive samples. It is computed by columns, which is faster."""
        seconds = [sample.seconds for _, sample in samples]
        nodes = [sample.node.__dict__ for _, sample in samples]
        uses = [sample.accelerators for _, sample in samples]
        of_all = {
            "utilization": [_mean(use.utilization) for use in uses],
            "accelerator_memory": [_sum(use.memory) for use in uses],
            "celsius": [max(known_values(use.celsius), default=None) for use in uses],
            "watts": [_sum(use.watts) for use in uses],
            "power": [power_of(sample) for _, sample in samples],
        }
        means = (of_all.get(name) or [node[name] for node in nodes] for name in MEANS)
        sums = (_sum([node[name] for node in nodes]) for name in SUMS)
        values = array("d", [_mean_over(column, seconds) for column in means])
        values.extend(math.nan if total is None else total for total in sums)
        return cls(
            begin=samples[0][0] - seconds[0],
            end=samples[-1][0],
            seconds=sum(seconds),
            values=values,
            utilization=_columns([use.utilization for use in uses], seconds),
            watts=_columns([use.watts for use in uses], seconds),
        )

    def with_next(self, other: Point) -> Point:
        """Return this point merged with the next one."""
        one, two, means = self.seconds, other.seconds, len(MEANS)

        def mean(a: float, b: float) -> float:
            return (a * one + b * two) / (one + two)

        return Point(
            begin=self.begin,
            end=other.end,
            seconds=one + two,
            values=_merged(self.values[:means], other.values[:means], mean)
            + _merged(self.values[means:], other.values[means:], operator.add),
            utilization=_merged(self.utilization, other.utilization, mean),
            watts=_merged(self.watts, other.watts, mean),
        )


_PLACES: Final = {name: place for place, name in enumerate((*MEANS, *SUMS))}


class PartEnergy(NamedTuple):
    """The measured energy of one part of a node."""

    joules: float
    seconds: float
    """Seconds covered by the measurement: the mean over the part's meters."""

    @property
    def watts(self) -> float | None:
        """Mean power over the measured time."""
        return self.joules / self.seconds if self.seconds > 0.0 else None


def power_of(sample: TelemetrySample) -> float | None:
    """Return the total power of all meters over their covered times, or None if none measured."""
    meters = zip(sample.joules, sample.covered, strict=True)
    return _sum([joules / covered for joules, covered in meters if covered > 0.0])


class _Energies:
    """The energies of one part of a node by sample, and their sums.

    They are integers of millijoules and milliseconds, as recorded, so that sums are exact in any
    order.
    """

    def __init__(self) -> None:
        self._ends = array("d")
        self._millijoules = array("q")
        self._milliseconds = array("q")
        self._sum = self._covered = 0
        self._last = -math.inf

    def add(self, utc: float, millijoules: int, milliseconds: int) -> None:
        self._ends.append(utc)
        self._millijoules.append(millijoules)
        self._milliseconds.append(milliseconds)
        self._sum += millijoules
        self._covered += milliseconds
        self._last = max(self._last, utc)

    def until(self, utc: float) -> PartEnergy:
        """Return the energy of the samples up to ``utc``, UTC seconds."""
        if self._last <= utc:
            return PartEnergy(self._sum / 1000.0, self._covered / 1000.0)
        counted = [end <= utc for end in self._ends]
        return PartEnergy(
            sum(compress(self._millijoules, counted)) / 1000.0,
            sum(compress(self._milliseconds, counted)) / 1000.0,
        )


class SamplerHistory:
    """The telemetry that one process recorded of its node."""

    def __init__(self, utc: float, replica: str, equipment: Equipment) -> None:
        self.began_utc = utc
        self.replica = replica
        """Replica whose journal contains it."""
        self.equipment = equipment
        self.absent = dict(equipment.absent)
        """Last reported reasons for missing values, by name."""
        self.latest: tuple[float, TelemetrySample] | None = None
        """The last sample, with its time in UTC seconds."""
        self.cpu_seconds = 0.0
        """Processor time of the sampler's thread in seconds."""
        self.meters = Counter(meter.part for meter in equipment.meters)
        """Number of meters by part."""
        self._energies = {part: _Energies() for part in self.meters}
        self._places = {
            part: [i for i, meter in enumerate(equipment.meters) if meter.part is part]
            for part in self.meters
        }
        """Indices of each part's meters among all meters."""
        self._points: list[Point] = []
        self._open: list[Taken] = []
        """Samples that are not yet in a point."""
        self._pieces = 1
        """Number of samples per point."""

    @property
    def host(self) -> str:
        return self.equipment.host

    @property
    def end_utc(self) -> float:
        """Time of the last sample, UTC seconds."""
        return self.began_utc if self.latest is None else self.latest[0]

    def fits(self, sample: TelemetrySample) -> bool:
        """Return whether a sample has exactly one value per meter and per accelerator."""
        meters, accelerators = len(self.equipment.meters), len(self.equipment.accelerators)
        use = sample.accelerators
        return (
            len(sample.joules) == meters == len(sample.covered)
            and len(use.utilization) == len(use.memory) == len(use.watts) == accelerators
            and len(use.celsius) == len(use.mhz) == len(use.memory_mhz) == accelerators
        )

    def add(self, utc: float, sample: TelemetrySample) -> None:
        """Add a sample that fits the equipment."""
        self.latest = utc, sample
        self.cpu_seconds += sample.cpu_seconds
        if sample.absent:
            reasons = self.absent | sample.absent
            self.absent = {name: why for name, why in reasons.items() if why}
        millijoules = [round(1000.0 * joules) for joules in sample.joules]
        milliseconds = [round(1000.0 * covered) for covered in sample.covered]
        for part, own in self._places.items():
            self._energies[part].add(
                utc,
                sum([millijoules[place] for place in own]),
                sum([milliseconds[place] for place in own]) // len(own),
            )
        if sample.seconds > 0.0:
            self._open.append((utc, sample))
            if len(self._open) == self._pieces:
                self._close_point()

    def energy(self, until: float) -> dict[Part, PartEnergy]:
        """Return the energy of the samples up to ``until``, UTC seconds, by part."""
        return {part: energies.until(until) for part, energies in self._energies.items()}

    @property
    def points(self) -> list[Point]:
        """The telemetry of the node as points in order of time."""
        return [*self._points, Point.of(self._open)] if self._open else list(self._points)

    def _close_point(self) -> None:
        self._points.append(Point.of(self._open))
        self._open.clear()
        if len(self._points) == MOST_POINTS:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [one.with_next(two) for one, two in pairs]
            self._pieces *= 2


def counted(samplers: Iterable[SamplerHistory]) -> list[SamplerHistory]:
    """Return the samplers of one host that count, in order of time: the longest of concurrent ones.

    Samplers overlap if processes of one host cannot see each other, e.g. in containers.
    """
    in_order = sorted(samplers, key=lambda s: (s.began_utc, s.replica))
    spans = [Span(s.began_utc, s.end_utc, s.equipment.seconds) for s in in_order]
    return [in_order[place] for place in sorted(apart(spans))]


def _mean(values: Sequence[float | None]) -> float | None:
    known = known_values(values)
    return sum(known) / len(known) if known else None


def _sum(values: Sequence[float | None]) -> float | None:
    known = known_values(values)
    return sum(known) if known else None


def _mean_over(values: Sequence[float | None], seconds: Sequence[float]) -> float:
    """Return the mean of values weighted by time, or nan if there are none."""
    told = [(v, s) for v, s in zip(values, seconds, strict=True) if v is not None]
    return sum([v * s for v, s in told]) / sum([s for _, s in told]) if told else math.nan


def _columns(rows: Sequence[Sequence[float | None]], seconds: Sequence[float]) -> array[float]:
    """Return the mean of each accelerator weighted by time."""
    return array("d", [_mean_over(column, seconds) for column in zip(*rows, strict=True)])


def _merged(
    one: Sequence[float], two: Sequence[float], both: Callable[[float, float], float]
) -> array[float]:
    """Return ``both`` of each pair of values or, if only one of a pair has a value, that value."""
    pairs = zip(one, two, strict=True)
    return array(
        "d", (b if math.isnan(a) else a if math.isnan(b) else both(a, b) for a, b in pairs)
    )


class Span(NamedTuple):
    """A time span in seconds."""

    begin: float
    end: float
    tolerance: float
    """Maximum overlap with another span in seconds."""


def apart(spans: Sequence[Span]) -> list[int]:
    """Return the indices of a selection of spans that do not overlap.

    Spans are selected from the longest to the shortest, equal ones in the order of the sequence, if
    their overlap with each selected span is within their tolerance.
    """
    begins: list[float] = []
    ends: list[float] = []
    """Starts and ends of the selected spans that lie in no other, both in ascending order."""
    kept = []
    for place in sorted(range(len(spans)), key=lambda place: spans[place].begin - spans[place].end):
        begin, end, tolerance = spans[place]
        # A selected span is at least as long: it overlaps by more than the tolerance if it begins
        # and ends that far within this one.
        before = bisect_left(begins, end - tolerance)
        if end - begin > tolerance and before and ends[before - 1] > begin + tolerance:
            continue
        kept.append(place)
        first = bisect_left(begins, begin)
        if not first or ends[first - 1] < end:
            last = bisect_right(ends, end, first)
            begins[first:last], ends[first:last] = [begin], [end]
    return kept
