"""Bar chart of a study: the contribution of each factor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from aiperf_hpc.analysis.study import Effect, Ratio
from aiperf_hpc.results.report.plots.figure import CURVE, IDEAL, INK, MUTED, drawing, name_point

ROW, FOOT = 0.5, 0.75
"""Heights in inches: of a factor, and of the axis."""
ALONE, WITHIN = 0.14, -0.14
"""Offsets of the two bars of a factor from the middle of its row, in rows."""


def write_factors(effects: Sequence[Effect], path: Path) -> None:
    """Write a plot with two bars per factor from 1, which means no effect, to an SVG file."""
    rows = range(len(effects), 0, -1)
    height = FOOT + ROW * len(effects)
    with drawing("factors", height) as canvas:
        axes = canvas.axes((0.2, FOOT / height, 0.7, 1.0 - (FOOT + 0.1) / height))
        axes.axvline(1.0, color=MUTED, linewidth=1.0, linestyle=IDEAL)
        for row, effect in zip(rows, effects, strict=True):
            _mark_ratio(axes, row + ALONE, effect.alone, "alone", MUTED)
            _mark_ratio(axes, row + WITHIN, effect.within, "within all", CURVE)
        axes.grid(visible=False)
        axes.margins(x=0.12)
        axes.set(ylim=(0.5, len(effects) + 0.5), xlabel="times better")
        axes.set_yticks(list(rows), [effect.factor for effect in effects])
        axes.xaxis.set_major_locator(MaxNLocator(7))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best")
    canvas.write(path)


def _mark_ratio(axes: Axes, place: float, ratio: Ratio | None, label: str, color: str) -> None:
    if ratio is None:
        return
    value = ratio.value
    named = axes.get_legend_handles_labels()[1]
    axes.barh(
        place, value - 1.0, 0.24, left=1.0, color=color, xerr=ratio.deviation or None, ecolor=INK,
        label=label if label not in named else None,
    )  # fmt: skip
    offset, side = ((6, 0), "left") if value >= 1.0 else ((-6, 0), "right")
    name_point(axes, f"{value:.2f} ×", (value, place), offset, ha=side)
