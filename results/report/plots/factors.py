"""What each factor of a study contributes: alone, and as the last of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.ticker import FuncFormatter, MaxNLocator

from aiperf_hpc.results.report.plots.colours import CURVE, INK, MUTED
from aiperf_hpc.results.report.plots.figure import Plot, dress, new_figure, save, settings

ROW, FOOT = 0.5, 0.75
"""Inches of height that a factor takes, and those of the axis below."""
ALONE, WITHIN = 0.14, -0.14
"""Where the two marks of a factor are, in rows from its middle."""


class Contribution(NamedTuple):
    """A factor's ratios and their standard errors; None where there are none."""

    name: str
    alone: tuple[float, float | None] | None
    within: tuple[float, float | None] | None


def factors_plot(contributions: Sequence[Contribution]) -> Plot:
    """Draw two marks a factor, around the line at 1, where a factor changes nothing."""
    rows = range(len(contributions), 0, -1)
    with settings("factors"):
        figure = new_figure(FOOT + ROW * len(contributions))
        height = figure.get_figheight()
        axes = figure.add_axes((0.2, FOOT / height, 0.7, 1.0 - (FOOT + 0.1) / height))
        axes.axvline(1.0, color=MUTED, linewidth=1.0, linestyle=(0, (5, 3)))
        for row, factor in zip(rows, contributions, strict=True):
            for ratio, place, colour, label in (
                (factor.alone, ALONE, MUTED, "alone"),
                (factor.within, WITHIN, CURVE, "within all"),
            ):
                if ratio is None:
                    continue
                value, deviation = ratio
                named = axes.get_legend_handles_labels()[1]
                axes.barh(
                    row + place, value - 1.0, 0.24, left=1.0, color=colour, xerr=deviation or None,
                    ecolor=INK, label=label if label not in named else None,
                )  # fmt: skip
                axes.annotate(
                    f"{value:.2f} ×", (value, row + place), va="center", color=INK,
                    xytext=(6 if value >= 1.0 else -6, 0), textcoords="offset points",
                    ha="left" if value >= 1.0 else "right", annotation_clip=False,
                )  # fmt: skip
        dress(axes)
        axes.margins(x=0.12)
        axes.set_yticks(list(rows), [factor.name for factor in contributions])
        axes.set_ylim(0.5, len(contributions) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(7))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_xlabel("times better", color=MUTED)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, labelcolor=MUTED, loc="best")
        svg = save(figure, "factors")
    words = "; ".join(
        f"{f.name}: {_said(f.alone)} alone, {_said(f.within)} within all" for f in contributions
    )
    caption = "Right of the dashed line a factor helps. Thin lines: standard errors."
    return Plot("Contribution of each factor", caption, f"A bar chart. {words}.", svg)


def _said(ratio: tuple[float, float | None] | None) -> str:
    return "not measured" if ratio is None else f"{ratio[0]:.2f} times better"
