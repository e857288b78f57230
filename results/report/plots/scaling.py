"""Runs and entries of several sizes: their scores, times and efficiencies over nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from aiperf_hpc.formatting import percent, si
from aiperf_hpc.results.report.plots.figure import (
    CURVE,
    IDEAL,
    INK,
    MOST_NUMBERS,
    MUTED,
    Canvas,
    Plot,
    drawing,
    logarithmic,
    mark_points,
    name_last,
)
from aiperf_hpc.results.report.scaling import ScalingPoint

LETTERS = 110
"""Digits that have room along a drawing's horizontal axis."""


def scaling_plots(points: Sequence[ScalingPoint]) -> list[Plot]:
    """Return the plots of OPS and efficiency over the number of nodes, fewest first.

    One run makes no curve: then there is none.
    """
    if len({point.nodes for point in points}) < 2:
        return []
    return [_ops_over_nodes(points), _efficiency_over_nodes(points)]


def _ops_over_nodes(points: Sequence[ScalingPoint]) -> Plot:
    nodes = [float(point.nodes) for point in points]
    scored = [point for point in points if point.ops > 0.0]  # A logarithm knows no 0.
    ideal = [points[0].ops_per_node * n for n in nodes]
    places, scores = [float(point.nodes) for point in scored], [point.ops for point in scored]
    with drawing("scaling") as canvas:
        axes = _over_nodes(canvas, points)
        axes.plot(nodes, ideal, color=MUTED, linewidth=1.0, linestyle=IDEAL, zorder=1)
        axes.plot(places, scores, color=CURVE)
        mark_points(axes, places, scores)
        name_last(axes, places[-1], scores[-1], si(scores[-1], "OPS"))
        logarithmic(axes, "y", [*scores, *ideal])
        axes.set_ylabel("OPS")
    least, most = points[0], points[-1]
    words = (
        f"Score over nodes, a line chart with logarithmic axes: {si(least.ops, 'OPS')} on "
        f"{least.nodes:,}, {si(most.ops, 'OPS')} on {most.nodes:,}; "
        f"in proportion it would be {si(least.ops_per_node * most.nodes, 'OPS')}."
    )
    caption = "Dashed: in proportion to the nodes."
    if len(scored) < len(points):
        caption += f" {len(points) - len(scored)} without a score cannot be drawn."
    return Plot("OPS over nodes", caption, words, canvas.svg)


def _efficiency_over_nodes(points: Sequence[ScalingPoint]) -> Plot:
    nodes = [float(point.nodes) for point in points]
    values = [100.0 * point.efficiency for point in points]
    with drawing("efficiency") as canvas:
        axes = _over_nodes(canvas, points)
        axes.axhline(100.0, color=MUTED, linewidth=1.0, linestyle=IDEAL, zorder=1)
        axes.plot(nodes, values, color=CURVE)
        mark_points(axes, nodes, values)
        name_last(axes, nodes[-1], values[-1], percent(points[-1].efficiency))
        axes.set(ylim=(0.0, 1.06 * max(100.0, *values)), ylabel="%")
    lowest = min(points, key=lambda point: point.efficiency)
    words = (
        f"Weak-scaling efficiency over nodes, a line chart: lowest {percent(lowest.efficiency)} "
        f"on {lowest.nodes:,}, {percent(points[-1].efficiency)} on {points[-1].nodes:,}."
    )
    caption = "A node's OPS over those in the smallest run."
    return Plot("Weak-scaling efficiency", caption, words, canvas.svg)


def _over_nodes(canvas: Canvas, points: Sequence[ScalingPoint]) -> Axes:
    """Return axes, of which the logarithmic one has a mark for each number of nodes."""
    axes = canvas.axes()
    nodes = sorted({point.nodes for point in points})
    low, high = nodes[0] * (nodes[0] / nodes[-1]) ** 0.03, nodes[-1]
    axes.set(xscale="log", xlim=(low, high), xlabel="nodes")
    places = [math.log(n / low) / math.log(high / low) for n in nodes]
    shown = [nodes[i] for i in _apart(places, [len(f"{n:,}") for n in nodes])]
    axes.set_xticks(shown, [f"{n:,}" for n in shown])
    axes.set_xticks([], minor=True)
    return axes


def _apart(places: Sequence[float], letters: Sequence[int]) -> list[int]:
    """Return which labels can stand side by side, the last one first of all.

    Args:
        places: of their middles, as parts of the width of a drawing, ascending.
        letters: of each.
    """
    shown: list[int] = []
    free = math.inf
    for i in reversed(range(len(places))):
        half = (letters[i] + 1) / 2.0 / LETTERS
        if places[i] + half <= free:
            shown.append(i)
            free = places[i] - half
    return shown[::-1]


STUDY_HEIGHT = 5.4


@dataclass(frozen=True, slots=True)
class Scale:
    """One entry, as its panels show it: means over its trainings, with their deviations."""

    accelerators: int
    minutes: float | None
    """Time to solution."""
    minutes_deviation: float | None
    epochs: float | None
    """To converge."""
    epochs_deviation: float | None
    throughput: float
    """Training samples/s of all accelerators."""
    throughput_deviation: float | None
    efficiency: float
    """Throughput's, against the smallest entry's."""
    time_efficiency: float | None


def scaling_study_plot(subject: str, scales: Sequence[Scale], name: str, devices: str) -> Plot:
    """Draw the entries of one benchmark, fewest ``devices`` (accelerators or ranks) first.

    Ideal is in proportion to the smallest entry: time falls and throughput grows with the
    accelerators, epochs and efficiency stay. ``name`` is unique among a page's drawings.
    """
    with drawing(name, STUDY_HEIGHT) as canvas:
        panels = canvas.panels(2, 2, shared="x")
        _panel(panels[0], "time to solution, min", scales, "minutes", -1)
        _panel(panels[1], "epochs to converge", scales, "epochs", 0)
        _panel(panels[2], "training samples/s", scales, "throughput", 1)
        _efficiency(panels[3], scales)
        for axes in panels:
            _number(axes, [scale.accelerators for scale in scales])
        for axes in panels[2:]:
            axes.set_xlabel(devices)
        canvas.figure.subplots_adjust(0.062, 0.095, 0.985, 0.93, hspace=0.3)
    base, most = scales[0], scales[-1]
    words = (
        f"Scaling of {subject}, four charts over {devices} with logarithmic axes: from "
        f"{base.accelerators:,} to {most.accelerators:,} time to solution goes from "
        f"{_text(base.minutes)} to {_text(most.minutes)} min, epochs from {_text(base.epochs)} to "
        f"{_text(most.epochs)}, throughput from {_text(base.throughput)} to "
        f"{_text(most.throughput)} samples/s; efficiency is {percent(most.efficiency, 1)}."
    )
    caption = "Dashed: ideal, from the smallest entry. Bars: one standard deviation over trainings."
    return Plot(f"Scaling of {subject}", caption, words, canvas.svg)


def _panel(axes: Axes, title: str, scales: Sequence[Scale], measure: str, growth: int) -> None:
    """Draw a measure, with the line that it would follow from the first entry that has it.

    Args:
        axes: the panel.
        title: of the panel.
        scales: all entries.
        measure: the field of entries, beside which its deviation is another.
        growth: the power of the number of accelerators in which the measure grows ideally.
    """
    shown = ((s.accelerators, getattr(s, measure), getattr(s, f"{measure}_deviation") or 0.0)
             for s in scales)  # fmt: skip
    known = [(n, value, deviation) for n, value, deviation in shown if value is not None]
    _title(axes, f"{title} (log scale)" if known else title)
    if not known:
        axes.annotate("no training converged", (0.5, 0.5), xycoords="axes fraction", ha="center")
        return
    places, values, deviations = zip(*known, strict=True)
    ends = [float(scales[0].accelerators), float(scales[-1].accelerators)]
    line = [values[0] * (n / places[0]) ** growth for n in ends]
    axes.plot(ends, line, color=MUTED, linewidth=1.0, linestyle=IDEAL, zorder=1)
    axes.errorbar(places, values, deviations, fmt="none", ecolor=CURVE, elinewidth=1.2, capsize=3)
    mark_points(axes, places, values)
    bars = [v + sign * d for _, v, d in known for sign in (-1.0, 1.0)]
    logarithmic(axes, "y", [*line, *bars])


def _efficiency(axes: Axes, scales: Sequence[Scale]) -> None:
    """Draw both efficiencies: rings of throughput's, squares of the time to solution's."""
    _title(axes, "efficiency, %  (rings: throughput, squares: time to solution)")
    axes.axhline(100.0, color=MUTED, linewidth=1.0, linestyle=IDEAL, zorder=1)
    timed = [(s.accelerators, 100.0 * s.time_efficiency) for s in scales if s.time_efficiency]
    squares = {"marker": "s", "markersize": 4.5, "markerfacecolor": INK, "markeredgecolor": INK}
    mark_points(axes, [n for n, _ in timed], [value for _, value in timed], **squares, zorder=2)
    values = [100.0 * scale.efficiency for scale in scales]
    mark_points(axes, [float(scale.accelerators) for scale in scales], values)
    axes.set_ylim(0.0, 1.1 * max(100.0, *values, *(value for _, value in timed)))


def _title(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=9.0, color=INK)


def _number(axes: Axes, accelerators: Sequence[int]) -> None:
    """Make the horizontal axis logarithmic, with the entries' own numbers where they have room."""
    logarithmic(axes, "x", [float(n) for n in accelerators])
    apart = max((max(accelerators) / min(accelerators)) ** (1 / MOST_NUMBERS), 1.02)
    shown: list[int] = []
    for n in sorted(set(accelerators)):
        if not shown or n >= shown[-1] * apart:
            shown.append(n)
    axes.xaxis.set_ticks(shown, [f"{n:,}" for n in shown])


def _text(value: float | None) -> str:
    return "an unknown number" if value is None else f"{value:,.4g}"
