"""OPS and efficiency over the number of nodes: runs of several sizes together."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aiperf_hpc.formatting import percent, si
from aiperf_hpc.results.report.plots.colours import CURVE, MUTED
from aiperf_hpc.results.report.plots.figure import (
    Plot,
    dress,
    logarithmic,
    mark_points,
    name_last,
    new_axes,
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
