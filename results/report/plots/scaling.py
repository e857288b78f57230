"""Plots over the number of nodes: scores, times and efficiencies of runs and entries."""

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
"""Maximum number of digits along a drawing's horizontal axis."""


def scaling_plots(points: Sequence[ScalingPoint]) -> list[Plot]:
    """Return the plots of OPS and efficiency over the number of nodes; none for a single size.

    The points are in ascending order of nodes.
    """
    if len({point.nodes for point in points}) < 2:
        return []
    return [_ops_over_nodes(points), _efficiency_over_nodes(points)]


def _ops_over_nodes(points: Sequence[ScalingPoint]) -> Plot:
    nodes = [float(point.nodes) for point in points]
    scored = [point for point in points if point.ops > 0.0]  # Zero has no logarithm.
    ideal = [points[0].ops_per_node * n for n in nodes]
    places, scores = [float(point.nodes) for point in scored], [point.ops for point in scored]
    with drawing("scaling") as canvas:
        axes = _over_nodes(canvas, points)
        axes.plot(nodes, ideal, color=MUTED, linewidth=1.0, linestyle=IDEAL, zorder=1,
                  label="ideal")  # fmt: skip
        axes.plot(places, scores, color=CURVE, label="OPS")
        mark_points(axes, places, scores)
        name_last(axes, places[-1], scores[-1], si(scores[-1], "OPS"))
        logarithmic(axes, "y", [*scores, *ideal])
        axes.set_ylabel("OPS")
    least, most = points[0], points[-1]
    words = (
        f"Score over nodes, a line chart with logarithmic axes: {si(least.ops, 'OPS')} on "
        f"{least.nodes:,}, {si(most.ops, 'OPS')} on {most.nodes:,}; "
        f"ideal scaling gives {si(least.ops_per_node * most.nodes, 'OPS')}."
    )
    caption = "Dashed: ideal, in proportion to the nodes."
    if len(scored) < len(points):
        caption += f" {len(points) - len(scored)} of {len(points)} runs have no score."
    return canvas.plot("OPS over nodes", caption, words)


def _efficiency_over_nodes(points: Sequence[ScalingPoint]) -> Plot:
    nodes = [float(point.nodes) for point in points]
    values = [100.0 * point.efficiency for point in points]
    with drawing("efficiency") as canvas:
        axes = _over_nodes(canvas, points)
        axes.axhline(100.0, color=MUTED, linewidth=1.0, linestyle=IDEAL, zorder=1)
        axes.plot(nodes, values, color=CURVE, label="efficiency")
        mark_points(axes, nodes, values)
        name_last(axes, nodes[-1], values[-1], percent(points[-1].efficiency))
        axes.set(ylim=(0.0, 1.06 * max(100.0, *values)), ylabel="%")
    lowest = min(points, key=lambda point: point.efficiency)
    words = (
        f"Weak-scaling efficiency over nodes, a line chart: lowest {percent(lowest.efficiency)} "
        f"on {lowest.nodes:,}, {percent(points[-1].efficiency)} on {points[-1].nodes:,}."
    )
    caption = "OPS per node relative to the smallest run."
    return canvas.plot("Weak-scaling efficiency", caption, words)


def _over_nodes(canvas: Canvas, points: Sequence[ScalingPoint]) -> Axes:
    """Return axes with a logarithmic horizontal axis and a tick for each number of nodes."""
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
    """Return the indices of labels that fit side by side; the last label always does.

    Args:
        places: middles of the labels as fractions of the width of a drawing, ascending.
        letters: number of characters of each label.
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
    """One entry in a scaling study: means over its training runs, with standard deviations."""

    accelerators: int
    minutes: float | None
    """Time to solution."""
    minutes_deviation: float | None
    epochs: float | None
    """Epochs to converge."""
    epochs_deviation: float | None
    throughput: float
    """Training samples per second of all accelerators."""
    throughput_deviation: float | None
    efficiency: float
    """Efficiency of the throughput, relative to the smallest entry."""
    time_efficiency: float | None


def scaling_study_plot(subject: str, scales: Sequence[Scale], name: str, devices: str) -> Plot:
    """Draw the entries of one benchmark in ascending order of ``devices`` (accelerators or ranks).

    Ideal scaling is in proportion to the smallest entry: time falls and throughput grows with the
    accelerators, epochs and efficiency are constant. ``name`` is unique among a page's drawings.
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
    caption = (
        "Dashed: ideal, from the smallest entry. Bars: one standard deviation over training runs."
    )
    return canvas.plot(f"Scaling of {subject}", caption, words)


def _panel(axes: Axes, title: str, scales: Sequence[Scale], metric: str, growth: int) -> None:
    """Draw a metric with the line of ideal scaling from the first entry that has the metric.

    Args:
        axes: axes of the panel.
        title: title of the panel.
        scales: all entries.
        metric: name of the entries' field; ``_deviation`` follows in the field of the deviation.
        growth: exponent of the number of accelerators for ideal scaling.
    """
    shown = ((s.accelerators, getattr(s, metric), getattr(s, f"{metric}_deviation") or 0.0)
             for s in scales)  # fmt: skip
    known = [(n, value, deviation) for n, value, deviation in shown if value is not None]
    _title(axes, f"{title} (log scale)" if known else title)
    if not known:
        axes.annotate(
            "no training run converged", (0.5, 0.5), xycoords="axes fraction", ha="center"
        )
        return
    places, values, deviations = zip(*known, strict=True)
    ends = [float(scales[0].accelerators), float(scales[-1].accelerators)]
    line = [values[0] * (n / places[0]) ** growth for n in ends]
    axes.plot(ends, line, color=MUTED, linewidth=1.0, linestyle=IDEAL, zorder=1)
    axes.errorbar(places, values, deviations, fmt="none", ecolor=CURVE, elinewidth=1.2, capsize=3,
                  label="one standard deviation")  # fmt: skip
    mark_points(axes, places, values, label="mean")
    ends_of_bars = [v + sign * d for _, v, d in known for sign in (-1.0, 1.0)]
    logarithmic(axes, "y", [*line, *ends_of_bars])


def _efficiency(axes: Axes, scales: Sequence[Scale]) -> None:
    """Draw the efficiency of throughput as rings, and of the time to solution as squares."""
    _title(axes, "efficiency, %  (rings: throughput, squares: time to solution)")
    axes.axhline(100.0, color=MUTED, linewidth=1.0, linestyle=IDEAL, zorder=1)
    timed = [(s.accelerators, 100.0 * s.time_efficiency) for s in scales if s.time_efficiency]
    squares = {"marker": "s", "markersize": 4.5, "markerfacecolor": INK, "markeredgecolor": INK,
               "label": "time to solution"}  # fmt: skip
    mark_points(axes, [n for n, _ in timed], [value for _, value in timed], **squares, zorder=2)
    values = [100.0 * scale.efficiency for scale in scales]
    places = [float(scale.accelerators) for scale in scales]
    mark_points(axes, places, values, label="throughput")
    axes.set_ylim(0.0, 1.1 * max(100.0, *values, *(value for _, value in timed)))


def _title(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=9.0, color=INK)


def _number(axes: Axes, accelerators: Sequence[int]) -> None:
    """Make the horizontal axis logarithmic, with the entries' numbers as far as they fit."""
    logarithmic(axes, "x", [float(n) for n in accelerators])
    apart = max((max(accelerators) / min(accelerators)) ** (1 / MOST_NUMBERS), 1.02)
    shown: list[int] = []
    for n in sorted(set(accelerators)):
        if not shown or n >= shown[-1] * apart:
            shown.append(n)
    axes.xaxis.set_ticks(shown, [f"{n:,}" for n in shown])


def _text(value: float | None) -> str:
    return "an unknown number" if value is None else f"{value:,.4g}"
