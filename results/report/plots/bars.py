"""Bar charts of times by their parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from aiperf_hpc.formatting import percent
from aiperf_hpc.results.report.plots.figure import Canvas, Plot, drawing, name_point
from aiperf_hpc.run.replica_requests import KernelCategory, Profile

COLORS = (
    "#0b5c99", "#d98324", "#4b7f1f", "#8a3d8f", "#c2405c", "#2a9d8f", "#8c6d46", "#6c8ebf",
    "#b7a33a", "#5a5f66", "#9aa3ab", "#c9ced3",
)  # fmt: skip
"""One color per category of kernels; the last one is of unclassified kernels."""
LEAST_LABELLED = 0.045
"""Minimum fraction of a bar for a label inside its part."""
_ROW, _LEGEND_ROW, _MARGIN = 0.42, 0.19, 0.45
"""Heights in inches: of a bar with its spacing, of a row of the legend, and of the axis."""
_COLUMNS = 6


class Bar(NamedTuple):
    """A bar with its label and its stacked parts in seconds."""

    label: str
    seconds: Mapping[str, float]


def write_profile(profile: Profile, path: Path) -> None:
    """Write the bar of a profile, seconds per step in each category, to an SVG file.

    Raises:
        ValueError: no time was measured.
    """
    found = {each.category: each.seconds / profile.steps for each in profile.categories}
    label = f"{profile.engine}, {profile.precision}, batch {profile.batch_size}"
    bar = Bar(label, {str(c): found[c] for c in KernelCategory if c in found})
    _time_drawing([bar], "breakdown").write(path)


def breakdown_plot(title: str, bars: Sequence[Bar], name: str) -> Plot:
    """Draw the fractions of each bar's parts for a page.

    Args:
        title: title of the plot.
        bars: one bar per run or profile.
        name: unique name among a page's drawings.

    Raises:
        ValueError: a bar has no time.
    """
    caption = "Fractions of a step's time; next to each bar, the duration of a step."
    description = "; ".join(_bar_text(bar) for bar in bars)
    return _time_drawing(bars, name).plot(title, caption, description)


def _bar_text(bar: Bar) -> str:
    whole = _whole(bar)
    parts = (f"{part} {percent(s / whole, 1)}" for part, s in bar.seconds.items())
    return f"{bar.label}: {', '.join(parts)}"


def _whole(bar: Bar) -> float:
    whole = sum(bar.seconds.values())
    if whole <= 0.0:
        raise ValueError(f"the bar '{bar.label}' has no time")
    return whole


def _time_drawing(bars: Sequence[Bar], name: str) -> Canvas:
    return stacked(bars, _colors(bars), [_time(_whole(bar)) for bar in bars], name)


def stacked(
    bars: Sequence[Bar], colors: Mapping[str, str], wholes: Sequence[str], name: str
) -> Canvas:
    """Draw the fractions of each bar's parts, with its total as a text next to it."""
    legend = _LEGEND_ROW * (1 + -(-len(colors) // _COLUMNS))
    height = _MARGIN + _ROW * len(bars) + legend
    with drawing(name, height) as canvas:
        (axes,) = canvas.panels(1, 1)
        for row, (bar, whole) in enumerate(zip(bars, wholes, strict=True)):
            _draw_bar(axes, row, bar, colors)
            name_point(axes, whole, (1.0, row), (6, 0))
        axes.grid(visible=False)
        axes.set(xlim=(0.0, 1.0), ylim=(len(bars) - 0.5, -0.5))
        axes.set_yticks(range(len(bars)), [bar.label for bar in bars])
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
        boxes = [Patch(color=color, label=part) for part, color in colors.items()]
        canvas.figure.legend(handles=boxes, loc="lower center", ncols=_COLUMNS)
        canvas.figure.tight_layout(rect=(0.0, legend / height, 1.0, 1.0))
    return canvas


def _colors(bars: Sequence[Bar]) -> dict[str, str]:
    """Return a color for each part; categories of kernels have the same color in all drawings."""
    parts = list(dict.fromkeys(part for bar in bars for part in bar.seconds))
    kinds = [str(kind) for kind in KernelCategory]
    if set(parts) <= set(kinds):
        return {kind: COLORS[n] for n, kind in enumerate(kinds) if kind in parts}
    return {part: COLORS[n % len(COLORS)] for n, part in enumerate(parts)}


def _draw_bar(axes: Axes, row: int, bar: Bar, colors: Mapping[str, str]) -> None:
    whole, left = sum(bar.seconds.values()) or 1.0, 0.0
    for part, seconds in bar.seconds.items():
        share = seconds / whole
        axes.barh([row], [share], left=[left], height=0.62, color=colors[part], label=part)
        if share >= LEAST_LABELLED:
            middle = left + share / 2
            axes.text(middle, row, percent(share, 0), ha="center", va="center", color="white")
        left += share


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{1e3 * seconds:.3g} ms"
