"""What a run's nodes did over its time: processors, accelerators, power, networks and disks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aiperf_hpc.formatting import scale_of, si
from aiperf_hpc.results.report.plots.colours import CURVE, GRID, MUTED
from aiperf_hpc.results.report.plots.figure import Plot, dress, new_axes, save, settings
from aiperf_hpc.results.report.plots.score import time_unit
from aiperf_hpc.results.report.telemetry import Spread, Stretch, TelemetryReport


@dataclass(frozen=True, slots=True)
class _Course:
    """One figure over time, with a band from the least to the most of the nodes, or none."""

    name: str
    title: str
    caption: str
    unit: str
    values: list[float]
    """The curve, a value a stretch; nan where nothing was told."""
    band: tuple[list[float], list[float]] | None = None


def telemetry_plots(telemetry: TelemetryReport | None) -> list[Plot]:
    """Return the plots of what was told of and was ever more than nothing."""
    if telemetry is None or not telemetry.course:
        return []
    return [
        _plot(course, telemetry.course)
        for course in _courses(telemetry.course)
        if any(value > 0.0 for value in course.values)
    ]


def _courses(course: Sequence[Stretch]) -> Iterator[_Course]:
    band = "The curve is the mean over the nodes, the band from the least to the most of them."
    yield _of_spreads("cpu", "Processors", band, [s.cpu_percent for s in course])
    yield _of_spreads("accelerator", "Accelerators", band, [s.accelerator_percent for s in course])
    power = "All that is metered, all nodes together."
    yield _Course("power", "Power", power, "W", _numbers([s.power_watts for s in course]))
    network = "Received and sent by all nodes together, by interfaces and by verbs."
    yield _Course("network", "Networks", network, "B/s", _numbers([s.network_rate for s in course]))
    disk = "Read and written by the block devices of all nodes together."
    yield _Course("disk", "Disks", disk, "B/s", _numbers([s.disk_rate for s in course]))


def _of_spreads(name: str, title: str, caption: str, spreads: list[Spread | None]) -> _Course:
    return _Course(
        name=name,
        title=title,
        caption=caption,
        unit="% busy",
        values=_numbers([None if s is None else s.mean for s in spreads]),
        band=(
            _numbers([None if s is None else s.least for s in spreads]),
            _numbers([None if s is None else s.most for s in spreads]),
        ),
    )


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _plot(course: _Course, stretches: Sequence[Stretch]) -> Plot:
    name = f"telemetry-{course.name}"
    seconds, unit = time_unit(stretches[-1].to_seconds)
    percent = course.band is not None
    most = max(value for value in course.values if not math.isnan(value))
    factor, prefix = (1.0, "") if percent else scale_of(most)
    # Steps: each stretch has one value, from its begin to its end.
    edges = [s.from_seconds / seconds for s in stretches] + [stretches[-1].to_seconds / seconds]
    with settings(name):
        figure, axes = new_axes()
        if course.band is not None:
            least, high = course.band
            axes.stairs(high, edges, baseline=least, fill=True, color=GRID, zorder=1)
        scaled = [value / factor for value in course.values]
        axes.stairs(scaled, edges, baseline=None, color=CURVE, linewidth=1.4, zorder=2)
        axes.set_xlim(0.0, edges[-1])
        axes.set_ylim(0.0, 105.0 if percent else 1.06 * most / factor)
        axes.set_xlabel(f"{unit} since the start", color=MUTED)
        axes.set_ylabel(f"{prefix}{course.unit}", color=MUTED)
        dress(axes)
        svg = save(figure, name)
    return Plot(course.title, course.caption, _describe(course, percent), svg)


def _describe(course: _Course, percent: bool) -> str:
    known = [value for value in course.values if not math.isnan(value)]
    mean = math.fsum(known) / len(known)
    figures = [
        f"{value:.0f}{course.unit}" if percent else si(value, course.unit)
        for value in (min(known), mean, max(known))
    ]
    return (
        f"{course.title} over the time of the run, a line chart: lowest {figures[0]}, "
        f"{figures[1]} on average, highest {figures[2]}."
    )
