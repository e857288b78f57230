"""Runs and entries of several sizes: their scores, times and efficiencies over nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aiperf_hpc.formatting import percent, si
from aiperf_hpc.results.report.plots.figure import (
    CURVE,
    INK,
    MOST_NUMBERS,
    MUTED,
    Plot,
    dress,
    logarithmic,
    mark_points,
    name_last,
    new_axes,
    new_figure,
    save,
    settings,
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
    with settings("scaling"):
        figure, axes = _over_nodes(points)
        axes.plot(nodes, ideal, color=MUTED, linewidth=1.0, linestyle=(0, (5, 3)), zorder=1)
        places = [float(point.nodes) for point in scored]
        scores = [point.ops for point in scored]
        axes.plot(places, scores, color=CURVE, linewidth=1.4)
        mark_points(axes, places, scores)
        name_last(axes, places[-1], scores[-1], si(scores[-1], "OPS"))
        logarithmic(axes, "y", [*scores, *ideal])
        axes.set_ylabel("OPS", color=MUTED)
        svg = save(figure, "scaling")
    least, most = points[0], points[-1]
    words = (
        f"Score over nodes, a line chart with logarithmic axes: {si(least.ops, 'OPS')} on "
        f"{least.nodes:,}, {si(most.ops, 'OPS')} on {most.nodes:,}; "
        f"in proportion it would be {si(least.ops_per_node * most.nodes, 'OPS')}."
    )
    caption = "Dashed: in proportion to the nodes."
    if len(scored) < len(points):
        caption += f" {len(points) - len(scored)} without a score cannot be drawn."
    return Plot("OPS over nodes", caption, words, svg)


def _efficiency_over_nodes(points: Sequence[ScalingPoint]) -> Plot:
    nodes = [float(point.nodes) for point in points]
    values = [100.0 * point.efficiency for point in points]
    with settings("efficiency"):
        figure, axes = _over_nodes(points)
        axes.axhline(100.0, color=MUTED, linewidth=1.0, linestyle=(0, (5, 3)), zorder=1)
        axes.plot(nodes, values, color=CURVE, linewidth=1.4)
        mark_points(axes, nodes, values)
        name_last(axes, nodes[-1], values[-1], percent(points[-1].efficiency))
        axes.set_ylim(0.0, 1.06 * max(100.0, *values))
        axes.set_ylabel("%", color=MUTED)
        svg = save(figure, "efficiency")
    lowest = min(points, key=lambda point: point.efficiency)
    words = (
        f"Weak-scaling efficiency over nodes, a line chart: lowest {percent(lowest.efficiency)} "
        f"on {lowest.nodes:,}, {percent(points[-1].efficiency)} on {points[-1].nodes:,}."
    )
    caption = "A node's OPS over those in the smallest run."
    return Plot("Weak-scaling efficiency", caption, words, svg)


def _over_nodes(points: Sequence[ScalingPoint]) -> tuple[Figure, Axes]:
    """Return a drawing whose logarithmic axis has a mark for each number of nodes."""
    figure, axes = new_axes()
    dress(axes)
    nodes = sorted({point.nodes for point in points})
    low, high = nodes[0] * (nodes[0] / nodes[-1]) ** 0.03, nodes[-1]
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    places = [math.log(n / low) / math.log(high / low) for n in nodes]
    shown = [nodes[i] for i in _apart(places, [len(f"{n:,}") for n in nodes])]
    axes.set_xticks(shown, [f"{n:,}" for n in shown])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("nodes", color=MUTED)
    return figure, axes


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
IDEAL = (0, (5, 3))
"""Dashes of the ideal lines."""


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


Panel = Callable[[Scale], tuple[float | None, float | None]]
"""An entry's value, and its deviation."""


def scaling_study_plot(subject: str, scales: Sequence[Scale], name: str, devices: str) -> Plot:
    """Draw the entries of one benchmark, fewest ``devices`` (accelerators or ranks) first.

    Ideal is in proportion to the smallest entry: time falls and throughput grows with the
    accelerators, epochs and efficiency stay. ``name`` is unique among a page's drawings.
    """
    base = scales[0]
    with settings(name):
        figure = new_figure(STUDY_HEIGHT)
        panels = figure.subplots(2, 2, sharex=True).ravel()
        _panel(panels[0], "time to solution, min", scales, _minutes, lambda n: 1.0 / n)
        _panel(panels[1], "epochs to converge", scales, _epochs, lambda _: 1.0)
        _panel(panels[2], "training samples/s", scales, _throughput, lambda n: n)
        _efficiency(panels[3], scales)
        for axes in panels:
            _number(axes, [scale.accelerators for scale in scales])
        for axes in panels[2:]:
            axes.set_xlabel(devices, color=MUTED)
        figure.subplots_adjust(left=0.062, right=0.985, top=0.93, bottom=0.095, hspace=0.3)
        svg = save(figure, name)
    most = scales[-1]
    words = (
        f"Scaling of {subject}, four charts over {devices} with logarithmic axes: from "
        f"{base.accelerators:,} to {most.accelerators:,} time to solution goes from "
        f"{_text(base.minutes)} to {_text(most.minutes)} min, epochs from {_text(base.epochs)} to "
        f"{_text(most.epochs)}, throughput from {_text(base.throughput)} to "
        f"{_text(most.throughput)} samples/s; efficiency is {percent(most.efficiency, 1)}."
    )
    caption = "Dashed: ideal, from the smallest entry. Bars: one standard deviation over trainings."
    return Plot(f"Scaling of {subject}", caption, words, svg)


def _panel(
    axes: Axes,
    title: str,
    scales: Sequence[Scale],
    of: Panel,
    ideal: Callable[[float], float],
) -> None:
    """Draw a measure, with the line that it would follow from the first entry that has it."""
    shown = [(scale.accelerators, *of(scale)) for scale in scales]
    known = [(n, value, deviation) for n, value, deviation in shown if value is not None]
    _dress(axes, f"{title} (log scale)" if known else title)
    if not known:
        axes.annotate("no training converged", (0.5, 0.5), xycoords="axes fraction", ha="center")
        return
    first, value, _ = known[0]
    ends = [float(scales[0].accelerators), float(scales[-1].accelerators)]
    line = [value * ideal(n / first) for n in ends]
    axes.plot(ends, line, color=MUTED, linewidth=1.0, linestyle=IDEAL, zorder=1)
    _error_bars(axes, known)
    bars = [v + sign * (d or 0.0) for _, v, d in known for sign in (-1.0, 1.0)]
    logarithmic(axes, "y", [*line, *bars])


def _error_bars(axes: Axes, known: Sequence[tuple[int, float, float | None]]) -> None:
    places = [float(n) for n, _, _ in known]
    values = [value for _, value, _ in known]
    deviations = [deviation or 0.0 for _, _, deviation in known]
    axes.errorbar(places, values, deviations, fmt="none", ecolor=CURVE, elinewidth=1.2, capsize=3)
    mark_points(axes, places, values)


def _efficiency(axes: Axes, scales: Sequence[Scale]) -> None:
    """Draw both efficiencies: rings of throughput's, squares of the time to solution's."""
    _dress(axes, "efficiency, %  (rings: throughput, squares: time to solution)")
    axes.axhline(100.0, color=MUTED, linewidth=1.0, linestyle=IDEAL, zorder=1)
    timed = [(s.accelerators, 100.0 * s.time_efficiency) for s in scales if s.time_efficiency]
    axes.plot(
        [n for n, _ in timed], [value for _, value in timed],
        linestyle="none", marker="s", markersize=4.5, color=INK, clip_on=False, zorder=2,
    )  # fmt: skip
    values = [100.0 * scale.efficiency for scale in scales]
    mark_points(axes, [float(scale.accelerators) for scale in scales], values)
    axes.set_ylim(0.0, 1.1 * max(100.0, *values, *(value for _, value in timed)))


def _dress(axes: Axes, title: str) -> None:
    dress(axes)
    axes.set_title(title, loc="left", fontsize=9.0, color=INK)


def _number(axes: Axes, accelerators: Sequence[int]) -> None:
    """Make the horizontal axis logarithmic, with the entries' own numbers where they have room."""
    logarithmic(axes, "x", [float(n) for n in accelerators])
    ends = max(accelerators), min(accelerators)
    apart = max((ends[0] / ends[1]) ** (1 / MOST_NUMBERS), 1.02)
    shown: list[int] = []
    for n in sorted(set(accelerators)):
        if not shown or n >= shown[-1] * apart:
            shown.append(n)
    axes.xaxis.set_ticks(shown, [f"{n:,}" for n in shown])


def _minutes(scale: Scale) -> tuple[float | None, float | None]:
    return scale.minutes, scale.minutes_deviation


def _epochs(scale: Scale) -> tuple[float | None, float | None]:
    return scale.epochs, scale.epochs_deviation


def _throughput(scale: Scale) -> tuple[float | None, float | None]:
    return scale.throughput, scale.throughput_deviation


def _text(value: float | None) -> str:
    return "an unknown number" if value is None else f"{value:,.4g}"
