"""Stacked bars of what a step's time is spent on: its communication, or its kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from aiperf_hpc.formatting import percent
from aiperf_hpc.results.report.plots.colours import INK, MUTED, of_its_own
from aiperf_hpc.results.report.plots.figure import Plot, dress, new_figure, save, settings
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.run.replica_requests import KernelCategory, Profile

COLOURS = (
    "#0b5c99", "#d98324", "#4b7f1f", "#8a3d8f", "#c2405c", "#2a9d8f", "#8c6d46", "#6c8ebf",
    "#b7a33a", "#5a5f66", "#9aa3ab", "#c9ced3",
)  # fmt: skip
"""As many as there are categories of kernels; the last one is what no rule knows."""
LEAST_LABELLED = 0.045
"""The share of a bar from which on it is written into its part."""
_ROW, _LEGEND_ROW, _MARGIN = 0.42, 0.19, 0.45
"""Inches of a bar with its distance to the next, of a row of the legend, and of the axis."""
_COLUMNS = 6


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: what it is of, and its parts in seconds, in the order in which they are stacked."""

    label: str
    seconds: Mapping[str, float]


def profile_bar(profile: Profile) -> Bar:
    """Return the bar of a profile: seconds of a step in each category, in one order for all."""
    found = {each.category: each.seconds / profile.steps for each in profile.categories}
    label = f"{profile.engine}, {profile.precision}, batch {profile.batch_size}"
    return Bar(label, {str(c): found[c] for c in KernelCategory if c in found})


def breakdown_plot(title: str, bars: Sequence[Bar], name: str) -> Plot:
    """Draw the shares of each bar's parts for a page.

    Args:
        title: what the bars are of.
        bars: one for each run or profile.
        name: what tells the drawing from others of the page.

    Raises:
        ValueError: there is no bar, or one without any time.
    """
    return Plot(
        title=title,
        caption="Shares of a step's time; beside each bar, what a step takes.",
        description="; ".join(_in_words(bar) for bar in bars),
        svg=_drawing(bars, name),
    )


def write_bars(bars: Sequence[Bar], path: Path) -> None:
    """Draw bars into an SVG file. Raises ValueError as ``breakdown_plot``."""
    write_whole(path, of_its_own(str(_drawing(bars, "breakdown"))))


def _in_words(bar: Bar) -> str:
    whole = _whole(bar)
    parts = (f"{part} {percent(s / whole, 1)}" for part, s in bar.seconds.items())
    return f"{bar.label}: {', '.join(parts)}"


def _whole(bar: Bar) -> float:
    whole = sum(bar.seconds.values())
    if whole <= 0.0:
        raise ValueError(f"the bar '{bar.label}' has no time in it")
    return whole


def _drawing(bars: Sequence[Bar], name: str) -> Markup:
    if not bars:
        raise ValueError("there is no bar to draw")
    colours = _colours(bars)
    with settings(name):
        legend = _LEGEND_ROW * (1 + -(-len(colours) // _COLUMNS))
        height = _MARGIN + _ROW * len(bars) + legend
        figure = new_figure(height)
        axes = figure.add_subplot()
        for row, bar in enumerate(bars):
            _draw_bar(axes, row, bar, colours)
        _dress(axes, bars)
        boxes = [Patch(color=colour, label=part) for part, colour in colours.items()]
        figure.legend(
            handles=boxes, loc="lower center", ncols=_COLUMNS, frameon=False, labelcolor=MUTED
        )
        figure.tight_layout(rect=(0.0, legend / height, 1.0, 1.0))
        return save(figure, name)


def _colours(bars: Sequence[Bar]) -> dict[str, str]:
    """Return a colour for each part; those of kernels keep theirs in all drawings."""
    parts = list(dict.fromkeys(part for bar in bars for part in bar.seconds))
    kinds = [str(kind) for kind in KernelCategory]
    if set(parts) <= set(kinds):
        return {kind: COLOURS[n] for n, kind in enumerate(kinds) if kind in parts}
    return {part: COLOURS[n % len(COLOURS)] for n, part in enumerate(parts)}


def _draw_bar(axes: Axes, row: int, bar: Bar, colours: Mapping[str, str]) -> None:
    whole, left = _whole(bar), 0.0
    for part, seconds in bar.seconds.items():
        share = seconds / whole
        axes.barh([row], [share], left=[left], height=0.62, color=colours[part])
        if share >= LEAST_LABELLED:
            axes.text(
                left + share / 2,
                row,
                percent(share, 0),
                ha="center",
                va="center",
                color="white",
            )
        left += share
    axes.text(1.01, row, _time(whole), va="center", color=INK)


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{1e3 * seconds:.3g} ms"


def _dress(axes: Axes, bars: Sequence[Bar]) -> None:
    dress(axes)
    axes.grid(visible=False)
    axes.set_xlim(0.0, 1.0)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars])
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
