"""Plots over the time of a run: score, error, replicas, and telemetry of its nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from matplotlib.axes import Axes

from aiperf_hpc.formatting import percent, scale_of, si
from aiperf_hpc.ops_counter.score import ScoreStatus
from aiperf_hpc.results.report.plots.figure import (
    CURVE,
    GRID,
    IDEAL,
    LIMIT,
    MUTED,
    Plot,
    drawing,
    mark_points,
    name_last,
    name_point,
    scaled,
)
from aiperf_hpc.results.report.telemetry import TelemetryInterval, TelemetryReport
from aiperf_hpc.results.views.nodes import ElasticityStatus
from aiperf_hpc.rules.validity.result import MOST_ERROR

T = TypeVar("T")
MOST_MARKS = 120
"""Maximum number of marked score points; more would hide the curve."""
MOST_STEPS = 300
"""Maximum number of drawn intervals; more are merged."""
MOST_OF_CURVE = 360
"""Maximum number of drawn points of a curve, one every two typographic points."""


_METRICS = (
    ("ops", "OPS, the score", "OPS"),
    ("regulated", "Regulated score", "OPS"),
    ("error", "Validation error of the best trial", "%"),
)
"""The metrics that have a plot: name, title and unit."""


def score_plots(fine: Sequence[ScoreStatus], official: Sequence[ScoreStatus]) -> list[Plot]:
    """Return the plots of OPS, regulated score and error over time.

    A metric without a final value is omitted, and so are operations if none were executed.

    Args:
        fine: closely spaced points of the curve, in order of time.
        official: points at each interval and at the end, which are marked.
    """
    if not fine or not official or official[-1].elapsed_seconds <= 0:
        return []
    fine = every(fine, math.ceil(len(fine) / MOST_OF_CURVE))
    return [
        _score_plot(name, title, unit, fine, official)
        for name, title, unit in _METRICS
        if (last := getattr(official[-1], name)) is not None and (last > 0.0 or name == "error")
    ]


def interval_ops(official: Sequence[ScoreStatus]) -> list[float]:
    """Return the operations per second of each interval between score points."""
    before, rates = (0.0, 0), []
    for point in official:
        seconds, operations = point.elapsed_seconds - before[0], point.operations - before[1]
        rates.append(operations / seconds if seconds > 0.0 else 0.0)
        before = point.elapsed_seconds, point.operations
    return rates


def time_unit(seconds: float) -> tuple[float, str]:
    """Return a suitable unit for a duration: its length in seconds, and its name."""
    if seconds >= 2 * 3600:
        return 3600.0, "hours"
    return (60.0, "minutes") if seconds >= 180 else (1.0, "seconds")


def every(points: Sequence[T], step: int) -> list[T]:
    """Return every ``step``-th point, including the last."""
    return list(points[(len(points) - 1) % step :: step])


def _score_plot(
    name: str,
    title: str,
    measured_in: str,
    fine: Sequence[ScoreStatus],
    official: Sequence[ScoreStatus],
) -> Plot:
    seconds, unit = time_unit(official[-1].elapsed_seconds)
    is_share = measured_in == "%"
    values = [getattr(point, name) for point in fine]
    marked = [getattr(point, name) for point in official]
    together, step = math.ceil(len(official) / MOST_STEPS), math.ceil(len(official) / MOST_MARKS)
    ends = every(official, together) if name == "ops" else []
    alone = interval_ops(ends)
    known = [value for value in (*values, *marked, *alone) if value is not None]
    factor, prefix = (0.01, "") if is_share else scale_of(max(known))
    times, marks = ([p.elapsed_seconds / seconds for p in points] for points in (fine, official))
    top = 1.06 * max(known) / factor
    with drawing(name) as canvas:
        axes = canvas.axes()
        if ends:
            edges = [0.0, *(end.elapsed_seconds / seconds for end in ends)]
            axes.stairs(scaled(alone, factor), edges, color=MUTED, linewidth=1.0, gid="intervals",
                        label="each interval")  # fmt: skip
        style = "steps-post" if is_share else "default"
        axes.plot(times, scaled(values, factor), color=CURVE, drawstyle=style, label="curve")
        points = every(marks, step), every(scaled(marked, factor), step)
        mark_points(axes, *points, label="score points")
        last = marked[-1]
        name_last(axes, marks[-1], last / factor, _say(last, measured_in))
        axes.set(xlim=(0.0, marks[-1]), xlabel=f"{unit} since the start")
        axes.set(ylim=(0.0, top if top > 0.0 else 1.0), ylabel=f"{prefix}{measured_in}")
        if is_share:
            _limit(axes)
    reached = [(v, t) for t, v in zip(times, values, strict=True) if v is not None]
    (least, low), (most, high) = min(reached), max(reached)
    words = (
        f"{title}, a line chart: lowest {_say(least, measured_in)} at {low:.3g} {unit}, "
        f"highest {_say(most, measured_in)} at {high:.3g} {unit}, "
        f"{_say(last, measured_in)} at the end."
    )
    return canvas.plot(title, _caption(together if ends else 0, step), words)


def _limit(axes: Axes) -> None:
    """Draw the maximum error of valid runs."""
    limit = 100.0 * MOST_ERROR
    axes.set_ylim(0.0, max(axes.get_ylim()[1], limit * 1.15))
    axes.axhline(limit, color=LIMIT, linewidth=1.0, linestyle=IDEAL, zorder=1)
    place = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
    name_point(axes, f"limit: {limit:g}%", (1.0, limit), (0, 3), **place, color=LIMIT)


def _say(value: float, unit: str) -> str:
    return percent(value) if unit == "%" else si(value, unit)


def _caption(together: int, step: int) -> str:
    said = []
    if together:
        which = "each interval" if together == 1 else f"{together} intervals"
        said.append(
            "Thick line: operations since the start over elapsed time. Thin steps: operations per "
            f"second of {which}."
        )
    if step > 1:
        said.append(f"One score point in {step} is marked.")
    return " ".join(said)


def nodes_plot(elastic: ElasticityStatus | None, elapsed: float) -> Plot | None:
    """Return the plot of replicas over time, or None if their number is constant."""
    if elastic is None or not elastic.steps:
        return None
    seconds, unit = time_unit(elapsed)
    most = max(step.replicas for step in elastic.steps)
    # There are no replicas before the first step; each step lasts until the next.
    edges = [0.0, *(step.elapsed_seconds / seconds for step in elastic.steps)]
    counts = [0.0, *(float(step.replicas) for step in elastic.steps[:-1])]
    with drawing("nodes") as canvas:
        axes = canvas.axes()
        axes.stairs(counts, edges, baseline=0.0, color=CURVE, linewidth=1.4, label="replicas")
        axes.set(xlim=(0.0, max(elapsed / seconds, edges[-1])), xlabel=f"{unit} since the start")
        axes.set(ylim=(0.0, 1.06 * most), ylabel="replicas")
    words = f"Replicas over time, a step chart: {most:,} at most, {len(elastic.steps)} changes."
    caption = "Active attempts of replicas, from their records."
    return canvas.plot("Replicas over time", caption, words)


class _Nodes(NamedTuple):
    """A quantity over time, with an optional band from minimum to maximum over the nodes."""

    name: str
    title: str
    caption: str
    unit: str
    values: list[float]
    """Value of each interval; nan if it was not reported."""
    band: tuple[list[float], list[float]] | None = None


def telemetry_plots(telemetry: TelemetryReport | None) -> list[Plot]:
    """Return the plots of reported quantities that were ever above zero."""
    if telemetry is None or not telemetry.timeline:
        return []
    return [
        _nodes_series_plot(series, telemetry.timeline)
        for series in _nodes_series(telemetry.timeline)
        if any(value > 0.0 for value in series.values)
    ]


_TOGETHER = (
    ("power", "Power", "Sum of all metered components of all nodes.", "W", "power_watts"),
    ("network", "Networks",
     "Received and sent by all nodes, over network interfaces and RDMA.", "B/s", "network_rate"),
    ("disk", "Disks",
     "Read and written by the block devices of all nodes.", "B/s", "disk_rate"),
)  # fmt: skip
"""Sums over all nodes: name, title, caption, unit and attribute of an interval."""


def _nodes_series(timeline: Sequence[TelemetryInterval]) -> Iterator[_Nodes]:
    band = "Curve: mean over the nodes. Band: minimum to maximum over the nodes."
    for name, title in (("cpu", "Processors"), ("accelerator", "Accelerators")):
        spreads = [getattr(interval, f"{name}_percent") for interval in timeline]
        mean, low, high = (
            scaled([None if s is None else getattr(s, each) for s in spreads], 1.0)
            for each in ("mean", "min", "max")
        )
        yield _Nodes(name, title, band, "% busy", mean, (low, high))
    for name, title, caption, unit, attribute in _TOGETHER:
        values = [getattr(interval, attribute) for interval in timeline]
        yield _Nodes(name, title, caption, unit, scaled(values, 1.0))


def _nodes_series_plot(series: _Nodes, timeline: Sequence[TelemetryInterval]) -> Plot:
    seconds, unit = time_unit(timeline[-1].to_seconds)
    percent = series.band is not None
    most = max(value for value in series.values if not math.isnan(value))
    factor, prefix = (1.0, "") if percent else scale_of(most)
    # Steps, because each interval has one value.
    edges = [s.from_seconds / seconds for s in timeline] + [timeline[-1].to_seconds / seconds]
    with drawing(f"telemetry-{series.name}") as canvas:
        axes = canvas.axes()
        if series.band is not None:
            low, high = series.band
            axes.stairs(high, edges, baseline=low, fill=True, color=GRID, zorder=1,
                        label="over the nodes")  # fmt: skip
        values = [value / factor for value in series.values]
        label = "all nodes" if series.band is None else "mean over the nodes"
        axes.stairs(values, edges, baseline=None, color=CURVE, linewidth=1.4, zorder=2, label=label)
        axes.set(xlim=(0.0, edges[-1]), xlabel=f"{unit} since the start")
        axes.set(ylim=(0.0, 105.0 if percent else 1.06 * most / factor))
        axes.set_ylabel(f"{prefix}{series.unit}")
    return canvas.plot(series.title, series.caption, _describe_nodes(series, percent))


def _describe_nodes(series: _Nodes, percent: bool) -> str:
    known = [value for value in series.values if not math.isnan(value)]
    mean = math.fsum(known) / len(known)
    figures = [
        f"{value:.0f}{series.unit}" if percent else si(value, series.unit)
        for value in (min(known), mean, max(known))
    ]
    return (
        f"{series.title} over the time of the run, a line chart: lowest {figures[0]}, "
        f"{figures[1]} on average, highest {figures[2]}."
    )
