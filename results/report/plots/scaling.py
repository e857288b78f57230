"""Plots over the number of nodes: scores, times and efficiencies of runs and entries."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes

from aiperf_hpc.formatting import percent, si
from aiperf_hpc.results.report.plots.figure import (
    CURVE,
    IDEAL,
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
