"""Time and bandwidth of the all-reduce over the size of the tensor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from aiperf_hpc.results.report.plots.figure import (
    HEIGHT,
    MUTED,
    dress,
    logarithmic,
    new_figure,
    of_its_own,
    save,
    settings,
)
from aiperf_hpc.run.paths import write_whole


class Point(Protocol):
    """The median time (s) and bus bandwidth (B/s) of one tensor size."""

    @property
    def bytes(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def bus_bandwidth(self) -> float: ...


LINES = ("#0b5c99", "#b0500f", "#4b7f1f", "#8a3d8f")
DASHES = ("solid", "dashed", "dotted")


def write_allreduce_plot(curves: Sequence[tuple[str, Sequence[Point]]], path: Path) -> None:
    """Draw time and bus bandwidth over size, with logarithmic axes, into an SVG file."""
    with settings("allreduce"):
        figure = new_figure(2.0 * HEIGHT)
        panels = figure.subplots(1, 2)
        for axes, name, unit in zip(
            panels, ("seconds", "bus_bandwidth"), ("time, s", "bus bandwidth, B/s"), strict=True
        ):
            for number, (label, points) in enumerate(curves):
                axes.plot(
                    [point.bytes for point in points],
                    [getattr(point, name) for point in points],
                    label=label,
                    linewidth=1.4,
                    color=LINES[number % len(LINES)],
                    linestyle=DASHES[number // len(LINES) % len(DASHES)],
                )
            axes.set_xlabel("tensor, B", color=MUTED)
            axes.set_ylabel(unit, color=MUTED)
            dress(axes)
            every = [point for _, points in curves for point in points]
            logarithmic(axes, "x", [float(point.bytes) for point in every])
            logarithmic(axes, "y", [float(getattr(point, name)) for point in every])
        panels[0].legend(frameon=False, labelcolor=MUTED)
        figure.tight_layout()
        svg = str(save(figure, "allreduce"))
    write_whole(path, of_its_own(svg))
