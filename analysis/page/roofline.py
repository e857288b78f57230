"""Roofline plots: achieved OPS over arithmetic intensity, with the peaks of the machine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes

from aiperf_hpc.analysis.sections.roofline import Ceilings, Rooflines, RunRoofline
from aiperf_hpc.formatting import percent, si
from aiperf_hpc.results.report.plots.figure import (
    CURVE,
    HEIGHT,
    INK,
    MUTED,
    Plot,
    drawing,
    logarithmic,
    mark_points,
    name_point,
)

ROOM = 3.0
"""Factor by which an axis extends beyond its data."""
LINE = 13.0
"""Height of a line of text in points."""
MARKS = {"fp32": "o", "bf16": "s", "fp16": "^"}
MARK_WORDS = {"fp32": "ring", "bf16": "square", "fp16": "triangle"}
NAMES = {"memory": "operations/B of memory", "network": "operations/B reduced",
         "storage": "operations/B read"}  # fmt: skip


class Point(NamedTuple):
    """Achieved performance of one network."""

    name: str
    intensity: float
    """Operations per byte."""
    most_intensity: float
    """Operations per byte if all layers that can be fused are fused; otherwise ``intensity``."""
    rate: float
    """Operations per second."""
    precision: str


class Panel(NamedTuple):
    """Panel of one kind of traffic."""

    kind: str
    """``memory``, ``network`` or ``storage``."""
    bandwidth: float
    """Bytes per second."""
    points: Sequence[Point]


def rooflines(found: Rooflines) -> Iterator[Plot]:
    """Yield a roofline plot of each run whose machine's peaks are known."""
    for place, run in enumerate(found.runs):
        if run.ceilings is None:
            continue
        panels, peaks = list(_panels(run, run.ceilings)), run.ceilings.compute
        plot = roofline_plot(run.entry, peaks, panels, f"roofline-{place}")
        if plot is not None:
            yield plot


def _panels(run: RunRoofline, ceilings: Ceilings) -> Iterator[Panel]:
    """Yield a panel for each known bandwidth, with the networks that move such bytes."""
    for kind, bandwidth in ceilings.bandwidths.items():
        points = [
            Point(each.graph[:8], low, high, each.achieved, each.precision)
            for each in run.architectures
            for low, high in (each.intensities(kind),)
            if low is not None and high is not None
        ]
        yield Panel(kind, bandwidth, points)


def roofline_plot(
    title: str, roofs: Mapping[str, float], panels: Sequence[Panel], name: str
) -> Plot | None:
    """Return a logarithmic panel for each kind of traffic with points, or None if there is none.

    Args:
        title: name of the measured run.
        roofs: compute peaks by precision, operations per second.
        panels: bandwidths, each with the achieved performance.
        name: unique name among a page's drawings.
    """
    drawn = [panel for panel in panels if panel.points]
    if not drawn or not roofs:
        return None
    rates = [*roofs.values()]
    rates += [point.rate for panel in drawn for point in panel.points]
    with drawing(name, 1.9 * HEIGHT) as canvas:
        every = canvas.panels(1, len(drawn), shared="y")
        for axes, panel in zip(every, drawn, strict=True):
            _draw(axes, panel, roofs, rates)
        every[0].set_ylabel("OPS")
        canvas.figure.tight_layout(w_pad=2.0)
        for axes, panel in zip(every, drawn, strict=True):
            _name_roofs(axes, roofs)
            _name_slope(axes, panel, roofs)
    return canvas.plot(f"Roofline of {title}", _caption(drawn), _words(roofs, drawn))


def _draw(axes: Axes, panel: Panel, roofs: Mapping[str, float], rates: Sequence[float]) -> None:
    """Draw lines and points, without labels, which need the final size of the panel."""
    axes.grid(axis="x")
    ridges = [rate / panel.bandwidth for rate in roofs.values()]
    found = [p.intensity for p in panel.points] + [p.most_intensity for p in panel.points]
    logarithmic(axes, "x", [min(*found, *ridges) / ROOM, max(*found, *ridges) * ROOM])
    logarithmic(axes, "y", [min(rates) / ROOM, max(rates) * ROOM])
    left, right = axes.get_xlim()
    top, slope = max(roofs.values()), panel.bandwidth
    axes.plot([left, top / slope], [left * slope, top], color=INK, label=f"{panel.kind} bandwidth")
    for name, rate in roofs.items():
        axes.plot([rate / slope, right], [rate] * 2, color=INK, label=f"{name} peak")
    for point in panel.points:
        _mark(axes, point)
    axes.set_xlabel(NAMES[panel.kind])


def _name_roofs(axes: Axes, roofs: Mapping[str, float]) -> None:
    """Label the peaks above their lines, with one label for lines that are close together."""
    groups: list[list[str]] = []
    for name in sorted(roofs, key=lambda name: -roofs[name]):
        if groups and _height(axes, roofs[groups[-1][0]]) - _height(axes, roofs[name]) < LINE:
            groups[-1].append(name)
        else:
            groups.append([name])
    for group in groups:
        text = ", ".join(f"{name} {si(roofs[name], 'OPS')}" for name in group)
        place = axes.get_xlim()[1], roofs[group[0]]
        name_point(axes, text, place, (0, 3), ha="right", va="bottom", color=MUTED)


def _height(axes: Axes, rate: float) -> float:
    """Return the vertical position of a rate in points."""
    return float(axes.transData.transform((axes.get_xlim()[0], rate))[1])


def _name_slope(axes: Axes, panel: Panel, roofs: Mapping[str, float]) -> None:
    """Label the bandwidth along its line, below the lowest peak."""
    begin = max(axes.get_xlim()[0], axes.get_ylim()[0] / panel.bandwidth)
    end = min(roofs.values()) / panel.bandwidth
    places = [(x, x * panel.bandwidth) for x in (begin, end)]
    (x0, y0), (x1, y1) = axes.transData.transform(places)
    middle = math.sqrt(begin * end)
    angle = math.degrees(math.atan2(y1 - y0, x1 - x0))
    along = {"rotation": angle, "rotation_mode": "anchor", "ha": "center", "va": "bottom"}
    text, place = f"{panel.kind} {si(panel.bandwidth, 'B/s')}", (middle, middle * panel.bandwidth)
    name_point(axes, text, place, (-2, 2), **along, color=MUTED)


def _mark(axes: Axes, point: Point) -> None:
    """Draw a marker for unfused layers, with a line to the intensity of fused layers."""
    if point.most_intensity > point.intensity:
        ends = [point.intensity, point.most_intensity]
        axes.plot(ends, [point.rate] * 2, color=CURVE, linewidth=1.2)
    mark = MARKS.get(point.precision, "o")
    mark_points(axes, [point.intensity], [point.rate], marker=mark, markersize=4.6,
                label=point.name)  # fmt: skip


def _caption(panels: Sequence[Panel]) -> str:
    points = [point for panel in panels for point in panel.points]
    precisions = [name for name in MARKS if any(p.precision == name for p in points)]
    marks = ", ".join(f"{MARK_WORDS[name]}: {name}" for name in precisions)
    words = f"A marker is a network ({marks}), with the performance of one worker in training"
    if any(point.most_intensity > point.intensity for point in points):
        words += "; its line ends at the intensity with fused element-wise layers"
    return f"{words}. Markers are below the lines unless caches reduce the traffic."


def _words(roofs: Mapping[str, float], panels: Sequence[Panel]) -> str:
    peaks = ", ".join(f"{name} {si(rate, 'OPS')}" for name, rate in roofs.items())
    parts = [f"Operations per second over operations per byte, logarithmic; peaks: {peaks}."]
    for panel in panels:
        best = max(panel.points, key=lambda point: point.rate)
        share = f", {percent(best.rate / roofs[best.precision], 0)} of its peak" if (
            best.precision in roofs
        ) else ""  # fmt: skip
        parts.append(
            f"{panel.kind.capitalize()} of {si(panel.bandwidth, 'B/s')}: {len(panel.points)} "
            f"networks, the fastest at {best.intensity:.3g} operations per byte with "
            f"{si(best.rate, 'OPS')}{share}."
        )
    return " ".join(parts)
