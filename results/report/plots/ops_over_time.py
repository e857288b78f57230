"""The score of several runs over their time, in one drawing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aiperf_hpc.formatting import scale_of, si
from aiperf_hpc.results.report.plots.allreduce import DASHES, LINES
from aiperf_hpc.results.report.plots.colours import MUTED
from aiperf_hpc.results.report.plots.figure import Plot, dress, new_figure, save, settings

HEIGHT = 3.4


class OpsCurve(NamedTuple):
    """One run: operations a second since its start, at times since its start."""

    name: str
    seconds: tuple[float, ...]
    ops: tuple[float, ...]


def ops_over_time_plot(curves: Sequence[OpsCurve]) -> Plot:
    """Draw the score of each run, as it was at every time of the run."""
    factor, prefix = scale_of(max(max(curve.ops) for curve in curves))
    with settings("ops"):
        figure = new_figure(HEIGHT)
        axes = figure.add_axes((0.062, 0.15, 0.6, 0.8))
        for number, curve in enumerate(curves):
            axes.plot(
                [seconds / 60.0 for seconds in curve.seconds],
                [ops / factor for ops in curve.ops],
                linewidth=1.4,
                label=curve.name,
                color=LINES[number % len(LINES)],
                linestyle=DASHES[number // len(LINES) % len(DASHES)],
            )
        dress(axes)
        axes.set_ylim(bottom=0.0)
        axes.set_xlabel("minutes since the run's start", color=MUTED)
        axes.set_ylabel(f"{prefix}OPS", color=MUTED)
        axes.legend(
            frameon=False, labelcolor=MUTED, loc="upper left", bbox_to_anchor=(1.02, 1.0),
            borderaxespad=0.0,
        )  # fmt: skip
        svg = save(figure, "ops")
    words = "; ".join(f"{curve.name} ends at {si(curve.ops[-1], 'OPS')}" for curve in curves)
    caption = "Operations of all samples executed so far, over the time so far."
    return Plot("Score over time", caption, f"A line chart. {words}.", svg)
