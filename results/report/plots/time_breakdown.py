"""What the time to solution is made of: a bar for each entry, as MLPerf HPC draws it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aiperf_hpc.formatting import few
from aiperf_hpc.results.report.plots.colours import INK, MUTED
from aiperf_hpc.results.report.plots.figure import Plot, dress, new_figure, save, settings

PARTS = ("staging", "compute", "evaluation", "extra")
COLOURS = ("#d98324", "#0b5c99", "#4b7f1f", "#8b9299")
ROW, FOOT = 0.32, 0.95
"""Inches of height that a bar takes, and those of axis and legend below."""
LETTERS = 40
"""Of a name that has room."""


class TimeBar(NamedTuple):
    """One entry: minutes of each part; None of one that its logs do not tell."""

    name: str
    staging: float | None
    compute: float
    """Without evaluation, where that is told."""
    evaluation: float | None
    extra: float

    @property
    def minutes(self) -> tuple[float, ...]:
        """All parts, in the order of ``PARTS``."""
        return (self.staging or 0.0, self.compute, self.evaluation or 0.0, self.extra)


def time_breakdown_plot(bars: Sequence[TimeBar]) -> Plot:
    """Draw shares of the time to solution, and the time itself beside each bar.

    Shares, because entries of one round differ a hundredfold in time.
    """
    rows = range(len(bars), 0, -1)
    with settings("breakdown"):
        figure = new_figure(FOOT + ROW * len(bars))
        height = figure.get_figheight()
        axes = figure.add_axes((0.3, (FOOT - 0.1) / height, 0.6, 1.0 - FOOT / height))
        for row, bar in zip(rows, bars, strict=True):
            whole, left = sum(bar.minutes), 0.0
            for minutes, part, colour in zip(bar.minutes, PARTS, COLOURS, strict=True):
                share = 100.0 * minutes / whole if whole > 0.0 else 0.0
                label = part if row == len(bars) else None
                axes.barh(row, share, 0.62, left=left, color=colour, label=label)
                left += share
            axes.annotate(
                f"{whole:,.2f} min", (100.0, row), xytext=(6, 0), textcoords="offset points",
                va="center", color=INK, annotation_clip=False,
            )  # fmt: skip
        dress(axes)
        axes.grid(visible=False)
        axes.set_yticks(list(rows), [_short(bar.name) for bar in bars])
        axes.set_ylim(0.5, len(bars) + 0.5)
        axes.set_xlim(0.0, 100.0)
        axes.set_xlabel("share of the time to solution, %", color=MUTED)
        figure.legend(
            *axes.get_legend_handles_labels(), loc="lower right", ncols=len(PARTS),
            frameon=False, labelcolor=MUTED,
        )  # fmt: skip
        svg = save(figure, "breakdown")
    words = "; ".join(f"{bar.name}: {_in_words(bar)}" for bar in bars)
    title = "What the time to solution is made of"
    return Plot(title, _caption(bars), f"A bar chart. {words}.", svg)


def _in_words(bar: TimeBar) -> str:
    known = (bar.staging, bar.compute, bar.evaluation, bar.extra)
    pairs = zip(PARTS, known, strict=True)
    return ", ".join(f"{part} {m:.2f} min" for part, m in pairs if m is not None)


def _caption(bars: Sequence[TimeBar]) -> str:
    said = ["Means over the trainings that count, of the run alone."]
    said.append("Compute: epochs, without evaluations; extra: neither of these nor staging.")
    for what, names in (
        ("No staging is in the logs of", [bar.name for bar in bars if bar.staging is None]),
        ("Compute contains the evaluations of", [b.name for b in bars if b.evaluation is None]),
    ):
        if names:
            said.append(f"{what} {few(names)}.")
    return " ".join(said)


def _short(name: str) -> str:
    return name if len(name) <= LETTERS else f"{name[:25]}…{name[-(LETTERS - 26) :]}"
