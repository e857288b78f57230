"""Bar charts: parts of a step's time or of the time to solution, and contributions of factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from aiperf_hpc.formatting import few, percent
from aiperf_hpc.results.report.plots.figure import (
    CURVE,
    IDEAL,
    INK,
    MUTED,
    Canvas,
    Plot,
    drawing,
    name_point,
)
from aiperf_hpc.run.replica_requests import KernelCategory, Profile

COLOURS = (
    "#0b5c99", "#d98324", "#4b7f1f", "#8a3d8f", "#c2405c", "#2a9d8f", "#8c6d46", "#6c8ebf",
    "#b7a33a", "#5a5f66", "#9aa3ab", "#c9ced3",
)  # fmt: skip
"""One color per category of kernels; the last one is of unclassified kernels."""
LEAST_LABELLED = 0.045
"""Minimum fraction of a bar for a label inside its part."""
_ROW, _LEGEND_ROW, _MARGIN = 0.42, 0.19, 0.45
"""Heights in inches: of a bar with its spacing, of a row of the legend, and of the axis."""
_COLUMNS = 6


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar with its label and its stacked parts in seconds."""

    label: str
    seconds: Mapping[str, float]


def profile_bar(profile: Profile) -> Bar:
    """Return the bar of a profile: seconds per step in each category, in a fixed order."""
    found = {each.category: each.seconds / profile.steps for each in profile.categories}
    label = f"{profile.engine}, {profile.precision}, batch {profile.batch_size}"
    return Bar(label, {str(c): found[c] for c in KernelCategory if c in found})


def breakdown_plot(title: str, bars: Sequence[Bar], name: str) -> Plot:
    """Draw the fractions of each bar's parts for a page.

    Args:
        title: title of the plot.
        bars: one bar per run or profile.
        name: unique name among a page's drawings.

    Raises:
        ValueError: there is no bar, or a bar without any time.
    """
    caption = "Fractions of a step's time; next to each bar, the duration of a step."
    description = "; ".join(_bar_text(bar) for bar in bars)
    return _time_drawing(bars, name).plot(title, caption, description)


def write_bars(bars: Sequence[Bar], path: Path) -> None:
    """Write bars to an SVG file. Raises ValueError like ``breakdown_plot``."""
    _time_drawing(bars, "breakdown").write(path)


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
    if not bars:
        raise ValueError("there are no bars to draw")
    return _stacked(bars, _colours(bars), [_time(_whole(bar)) for bar in bars], name)


def _stacked(
    bars: Sequence[Bar], colours: Mapping[str, str], wholes: Sequence[str], name: str
) -> Canvas:
    """Draw the fractions of each bar's parts, with its total as a text next to it."""
    legend = _LEGEND_ROW * (1 + -(-len(colours) // _COLUMNS))
    height = _MARGIN + _ROW * len(bars) + legend
    with drawing(name, height) as canvas:
        (axes,) = canvas.panels(1, 1)
        for row, (bar, whole) in enumerate(zip(bars, wholes, strict=True)):
            _draw_bar(axes, row, bar, colours)
            name_point(axes, whole, (1.0, row), (6, 0))
        axes.grid(visible=False)
        axes.set(xlim=(0.0, 1.0), ylim=(len(bars) - 0.5, -0.5))
        axes.set_yticks(range(len(bars)), [bar.label for bar in bars])
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
        boxes = [Patch(color=colour, label=part) for part, colour in colours.items()]
        canvas.figure.legend(handles=boxes, loc="lower center", ncols=_COLUMNS)
        canvas.figure.tight_layout(rect=(0.0, legend / height, 1.0, 1.0))
    return canvas


def _colours(bars: Sequence[Bar]) -> dict[str, str]:
    """Return a color for each part; categories of kernels have the same color in all drawings."""
    parts = list(dict.fromkeys(part for bar in bars for part in bar.seconds))
    kinds = [str(kind) for kind in KernelCategory]
    if set(parts) <= set(kinds):
        return {kind: COLOURS[n] for n, kind in enumerate(kinds) if kind in parts}
    return {part: COLOURS[n % len(COLOURS)] for n, part in enumerate(parts)}


def _draw_bar(axes: Axes, row: int, bar: Bar, colours: Mapping[str, str]) -> None:
    whole, left = sum(bar.seconds.values()) or 1.0, 0.0
    for part, seconds in bar.seconds.items():
        share = seconds / whole
        axes.barh([row], [share], left=[left], height=0.62, color=colours[part], label=part)
        if share >= LEAST_LABELLED:
            middle = left + share / 2
            axes.text(middle, row, percent(share, 0), ha="center", va="center", color="white")
        left += share


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{1e3 * seconds:.3g} ms"


PARTS = {"staging": "#d98324", "compute": "#0b5c99", "evaluation": "#4b7f1f", "extra": "#8b9299"}
"""Colors of the parts of the time to solution."""
LETTERS = 40
"""Maximum length of a name."""


class TimeBar(NamedTuple):
    """An entry with the minutes of each part; None if its logs do not contain it."""

    name: str
    staging: float | None
    compute: float
    """Without evaluation, if that is known."""
    evaluation: float | None
    extra: float

    @property
    def minutes(self) -> tuple[float, ...]:
        """Minutes of all parts, in the order of ``PARTS``."""
        return (self.staging or 0.0, self.compute, self.evaluation or 0.0, self.extra)


def time_breakdown_plot(bars: Sequence[TimeBar]) -> Plot:
    """Draw fractions of the time to solution, with the time itself next to each bar.

    Absolute times of entries of one round would differ by a factor of a hundred.
    """
    shares = [
        Bar(_short(bar.name), dict(zip(PARTS, (60.0 * m for m in bar.minutes), strict=True)))
        for bar in bars
    ]
    canvas = _stacked(shares, PARTS, [f"{sum(bar.minutes):,.2f} min" for bar in bars], "breakdown")
    words = "; ".join(f"{bar.name}: {_time_bar_text(bar)}" for bar in bars)
    title = "Parts of the time to solution"
    return canvas.plot(title, _caption(bars), f"A bar chart. {words}.")


def _time_bar_text(bar: TimeBar) -> str:
    known = (bar.staging, bar.compute, bar.evaluation, bar.extra)
    pairs = zip(PARTS, known, strict=True)
    return ", ".join(f"{part} {m:.2f} min" for part, m in pairs if m is not None)


def _caption(bars: Sequence[TimeBar]) -> str:
    said = ["Percentages of each entry's time to solution: means over its scored training runs."]
    said.append("Compute: epochs, without evaluations; extra: neither of these nor staging.")
    for what, names in (
        ("No staging in the logs of", [bar.name for bar in bars if bar.staging is None]),
        ("Compute contains the evaluations of", [b.name for b in bars if b.evaluation is None]),
    ):
        if names:
            said.append(f"{what} {few(names)}.")
    return " ".join(said)


def _short(name: str) -> str:
    return name if len(name) <= LETTERS else f"{name[:25]}…{name[-(LETTERS - 26) :]}"


ROW, FOOT = 0.5, 0.75
"""Heights in inches: of a factor, and of the axis."""
ALONE, WITHIN = 0.14, -0.14
"""Offsets of the two bars of a factor from the middle of its row, in rows."""


class Contribution(NamedTuple):
    """A factor's ratios with their standard errors, or None if unknown."""

    name: str
    alone: tuple[float, float | None] | None
    within: tuple[float, float | None] | None


def write_factors(contributions: Sequence[Contribution], path: Path) -> None:
    """Write a plot with two bars per factor from 1, which means no effect, to an SVG file."""
    rows = range(len(contributions), 0, -1)
    height = FOOT + ROW * len(contributions)
    with drawing("factors", height) as canvas:
        axes = canvas.axes((0.2, FOOT / height, 0.7, 1.0 - (FOOT + 0.1) / height))
        axes.axvline(1.0, color=MUTED, linewidth=1.0, linestyle=IDEAL)
        for row, factor in zip(rows, contributions, strict=True):
            _mark_ratio(axes, row + ALONE, factor.alone, "alone", MUTED)
            _mark_ratio(axes, row + WITHIN, factor.within, "within all", CURVE)
        axes.grid(visible=False)
        axes.margins(x=0.12)
        axes.set(ylim=(0.5, len(contributions) + 0.5), xlabel="times better")
        axes.set_yticks(list(rows), [factor.name for factor in contributions])
        axes.xaxis.set_major_locator(MaxNLocator(7))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best")
    canvas.write(path)


def _mark_ratio(
    axes: Axes, place: float, ratio: tuple[float, float | None] | None, label: str, colour: str
) -> None:
    if ratio is None:
        return
    value, deviation = ratio
    named = axes.get_legend_handles_labels()[1]
    axes.barh(
        place, value - 1.0, 0.24, left=1.0, color=colour, xerr=deviation or None, ecolor=INK,
        label=label if label not in named else None,
    )  # fmt: skip
    offset, side = ((6, 0), "left") if value >= 1.0 else ((-6, 0), "right")
    name_point(axes, f"{value:.2f} ×", (value, place), offset, ha=side)
