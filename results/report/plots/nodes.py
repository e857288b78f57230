"""How many replicas a run had over time, where nodes came and went."""

from __future__ import annotations

from aiperf_hpc.results.report.plots.colours import CURVE, MUTED
from aiperf_hpc.results.report.plots.figure import Plot, dress, new_axes, save, settings
from aiperf_hpc.results.report.plots.score import time_unit
from aiperf_hpc.results.views.elasticity import ElasticityStatus


def nodes_plot(elastic: ElasticityStatus | None, elapsed: float) -> Plot | None:
    """Return the plot of replicas over time; None for a run whose nodes stayed."""
    if elastic is None or not elastic.steps:
        return None
    seconds, unit = time_unit(elapsed)
    most = max(step.replicas for step in elastic.steps)
    # Before the first step none was there; each step lasts until the next.
    edges = [0.0, *(step.seconds / seconds for step in elastic.steps)]
    counts = [0.0, *(float(step.replicas) for step in elastic.steps[:-1])]
    with settings("nodes"):
        figure, axes = new_axes()
        axes.stairs(counts, edges, baseline=0.0, color=CURVE, linewidth=1.4)
        axes.set_xlim(0.0, max(elapsed / seconds, edges[-1]))
        axes.set_ylim(0.0, 1.06 * most)
        axes.set_xlabel(f"{unit} since the start", color=MUTED)
        axes.set_ylabel("replicas", color=MUTED)
        dress(axes)
        svg = save(figure, "nodes")
    words = f"Replicas over time, a step chart: {most:,} at most, {len(elastic.steps)} changes."
    return Plot("Replicas over time", "Lives of replicas, by their own records.", words, svg)
