"""Time and bandwidth of the all-reduce over the size of the tensor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aiperf_hpc.primary.allreduce import Curve
from aiperf_hpc.results.report.plots.figure import (
    HEIGHT,
    drawing,
    line_style,
    logarithmic,
)


def write_allreduce_plot(curves: Sequence[Curve], path: Path) -> None:
    """Draw time and bus bandwidth over size, with logarithmic axes, into an SVG file."""
    every = [point for _, points in curves for point in points]
    with drawing("allreduce", 2.0 * HEIGHT) as canvas:
        panels = canvas.panels(1, 2)
        for axes, name, unit in zip(
            panels, ("seconds", "bus_bandwidth"), ("time, s", "bus bandwidth, B/s"), strict=True
        ):
            for number, (label, points) in enumerate(curves):
                values = [getattr(point, name) for point in points]
                axes.plot([p.bytes for p in points], values, label=label, **line_style(number))
            axes.set(xlabel="tensor, B", ylabel=unit)
            logarithmic(axes, "x", [float(point.bytes) for point in every])
            logarithmic(axes, "y", [float(getattr(point, name)) for point in every])
        panels[0].legend()
        canvas.figure.tight_layout()
    canvas.write(path)
