"""The curves of a report as inline SVG, coloured by the page's own style sheet.

Matplotlib knows no style sheets: it is given stand-in colours, which are then replaced by CSS
variables, so that one drawing serves light, dark and paper.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Literal

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from aiperf_hpc.errors import UsageError
from aiperf_hpc.ops_counter.validity import MOST_ERROR
from aiperf_hpc.primary.allreduce import Curve
from aiperf_hpc.primary.formatting import percent, scale_of, si
from aiperf_hpc.primary.monitor.run_view import ScoreStatus
from aiperf_hpc.primary.report.scaling import ScalingPoint
from aiperf_hpc.primary.report.search_replay import CandidateOutcome
from aiperf_hpc.run.paths import write_whole

INK, MUTED, GRID, CURVE, LIMIT, PAPER = (f"#0{n}0{n}0{n}" for n in range(1, 7))
_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--line",
    CURVE: "--curve",
    LIMIT: "--bad",
    PAPER: "--surface",
}
ALONE = {"--ink": "#1a1f25", "--muted": "#56616c", "--line": "#dde2e7", "--curve": "#0b5c99"}
"""The colours of a drawing that stands in no page."""
LINES = ("#0b5c99", "#b0500f", "#4b7f1f", "#8a3d8f")
DASHES = ("solid", "dashed", "dotted")
WIDTH, HEIGHT = 11.0, 2.45
"""Inches at 72 points each; the page scales them to its width."""
LETTERS = 110
"""Digits that have room along a drawing's horizontal axis."""

MOST_MARKS = 120
"""More official points than this are marked in part: marks would hide the curve."""


LEAST_NUMBERS, MOST_NUMBERS = 3, 9
"""On a logarithmic axis."""

MOST_CANDIDATES = 150
"""Candidates of which the plot of beliefs shows what was expected."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawing with its words."""

    title: str
    caption: str
    description: str
    """For those who do not see the drawing."""
    svg: Markup


@dataclass(frozen=True, slots=True)
class _Measure:
    name: str
    title: str
    unit: str
    values: list[float | None]
    """None before there was any."""
    official: list[float | None]
    last: float


def score_plots(fine: Sequence[ScoreStatus], official: Sequence[ScoreStatus]) -> list[Plot]:
    """Return the plots of OPS, regulated score and error over time.

    A measure that the last point does not have is left out.

    Args:
        fine: points close together, in order of time; the curve.
        official: the points at each interval and at the end; the marks.
    """
    if not fine or not official or official[-1].elapsed_seconds <= 0:
        return []
    wanted = [
        ("ops", "OPS, the score", "OPS"),
        ("regulated", "Regulated score", "OPS"),
        ("error", "Validation error of the best trial", "%"),
    ]
    factor, unit = _time_unit(official[-1].elapsed_seconds)
    times = [p.elapsed_seconds / factor for p in fine]
    marks = [p.elapsed_seconds / factor for p in official]
    return [
        _plot(
            _Measure(name, title, of, _all(fine, name), _all(official, name), last),
            times,
            marks,
            unit,
        )
        for name, title, of in wanted
        if (last := getattr(official[-1], name)) is not None
    ]


def scaling_plots(points: Sequence[ScalingPoint]) -> list[Plot]:
    """Return the plots of OPS and efficiency over the number of nodes, fewest first.

    One run makes no curve: then there is none.
    """
    if len({point.nodes for point in points}) < 2:
        return []
    return [_ops_over_nodes(points), _efficiency_over_nodes(points)]


def _ops_over_nodes(points: Sequence[ScalingPoint]) -> Plot:
    nodes = [float(point.nodes) for point in points]
    scored = [point for point in points if point.ops > 0.0]  # A logarithm knows no 0.
    ideal = [points[0].ops_per_node * n for n in nodes]
    with _settings("scaling"):
        figure, axes = _over_nodes(points)
        axes.plot(nodes, ideal, color=MUTED, linewidth=1.0, linestyle=(0, (5, 3)), zorder=1)
        places = [float(point.nodes) for point in scored]
        scores = [point.ops for point in scored]
        axes.plot(places, scores, color=CURVE, linewidth=1.4)
        _marks(axes, places, scores)
        _name_last(axes, places[-1], scores[-1], si(scores[-1], "OPS"))
        _logarithmic(axes, "y", [*scores, *ideal])
        axes.set_ylabel("OPS", color=MUTED)
        svg = _save(figure, "scaling")
    least, most = points[0], points[-1]
    words = (
        f"Score over nodes, a line chart with logarithmic axes: {si(least.ops, 'OPS')} on "
        f"{least.nodes:,}, {si(most.ops, 'OPS')} on {most.nodes:,}; "
        f"in proportion it would be {si(least.ops_per_node * most.nodes, 'OPS')}."
    )
    caption = "Dashed: in proportion to the nodes."
    if len(scored) < len(points):
        caption += f" {len(points) - len(scored)} without a score cannot be drawn."
    return Plot("OPS over nodes", caption, words, svg)


def belief_plot(candidates: Sequence[CandidateOutcome]) -> Plot | None:
    """Return what was expected of candidates beside what came of them; None without any."""
    judged = [c for c in candidates if c.mean is not None and c.objective is not None]
    if not judged:
        return None
    shown = [judged[i] for i in _evenly(len(judged), MOST_CANDIDATES)]
    expected = [100.0 * (c.mean or 0.0) for c in shown]
    spread = [100.0 * (c.deviation or 0.0) for c in shown]
    reached = [100.0 * (c.reached or 0.0) for c in shown]
    predicted = _scaled([c.predicted for c in shown], 0.01)
    with _settings("belief"):
        figure = Figure(figsize=(WIDTH, 1.35 * HEIGHT))
        FigureCanvasSVG(figure)
        axes = figure.add_axes((0.062, 0.15, 0.855, 0.8))
        numbers = [i + 1 for i in range(len(shown))]
        axes.errorbar(
            numbers, expected, yerr=spread, color=MUTED, linestyle="none", marker="_",
            markersize=7, elinewidth=1.0,
        )  # fmt: skip
        axes.plot(
            numbers, predicted, linestyle="none", marker="D", markersize=6.5,
            markerfacecolor="none", markeredgecolor=INK, markeredgewidth=1.0, gid="predicted",
        )  # fmt: skip
        axes.plot(
            numbers, reached, linestyle="none", marker="o", markersize=4.2, color=CURVE,
            gid="reached",
        )  # fmt: skip
        axes.plot(numbers, _highest_so_far(reached), color=CURVE, linewidth=1.0, alpha=0.5)
        axes.set_ylim(*_accuracies(expected, spread, [*reached, *predicted]))
        axes.set_xlim(0.0, len(shown) + 1.0)
        axes.set_xlabel("candidates in order of time", color=MUTED)
        axes.set_ylabel("accuracy, %", color=MUTED)
        _dress(axes)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        svg = _save(figure, "belief")
    words = (
        f"Expected and reached accuracy of {len(shown)} candidates: expected from "
        f"{min(expected):.3g}% to {max(expected):.3g}%, reached from {min(reached):.3g}% to "
        f"{max(reached):.3g}%."
    )
    caption = (
        "Bars: expected when it was chosen, with one deviation. Dots: reached. Diamonds: predicted "
        "of longer training, which is what the search was told. Line: the best reached so far."
    )
    if len(shown) < len(judged):
        caption += f" {len(shown)} of {len(judged):,} candidates, evenly taken."
    return Plot("Expected, reached and predicted", caption, words, svg)


def write_belief_plot(candidates: Sequence[CandidateOutcome], path: Path) -> None:
    """Draw ``belief_plot`` into an SVG file of its own.

    Raises:
        UsageError: the file's name does not end in .svg, or of no candidate was something
            expected and an objective value told.
    """
    if path.suffix != ".svg":
        raise UsageError(f"--plot {path}: the drawing is SVG; name a file that ends in .svg")
    plot = belief_plot(candidates)
    if plot is None:
        raise UsageError("no candidate has both an expected and a known objective yet: no plot")
    svg = str(plot.svg)
    for variable, colour in ALONE.items():
        svg = svg.replace(f"var({variable})", colour)
    path.write_text(svg, "utf-8")


def write_allreduce_plot(curves: Sequence[Curve], path: Path) -> None:
    """Draw time and bus bandwidth over size, with logarithmic axes, into an SVG file."""
    with _settings("allreduce"):
        figure = Figure(figsize=(WIDTH, 2.0 * HEIGHT))
        FigureCanvasSVG(figure)
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
            _dress(axes)
            every = [point for _, points in curves for point in points]
            _logarithmic(axes, "x", [float(point.bytes) for point in every])
            _logarithmic(axes, "y", [float(getattr(point, name)) for point in every])
        panels[0].legend(frameon=False, labelcolor=MUTED)
        figure.tight_layout()
        svg = str(_save(figure, "allreduce"))
    for variable, colour in ALONE.items():
        svg = svg.replace(f"var({variable})", colour)
    write_whole(path, svg)


def _evenly(count: int, most: int) -> list[int]:
    """Return at most ``most`` of the first ``count`` numbers, the first and the last included."""
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def _highest_so_far(values: Sequence[float]) -> list[float]:
    return list(accumulate(values, max))


def _accuracies(
    expected: Sequence[float], spread: Sequence[float], others: Sequence[float]
) -> tuple[float, float]:
    """Return the limits, in percent, within which everything is seen.

    Deviations are followed no further than from 0 to 100; what is more says nothing.
    """
    bars = [(e, max(e - s, 0.0), min(e + s, 100.0)) for e, s in zip(expected, spread, strict=True)]
    known = [v for v in (*others, *(end for bar in bars for end in bar)) if not math.isnan(v)]
    low, high = min(known), max(known)
    room = max(0.08 * (high - low), 0.05)
    return low - room, high + room


def _logarithmic(axes: Axes, name: Literal["x", "y"], values: Iterable[float]) -> None:
    """Make an axis logarithmic, with numbers on it however far or close the values are.

    Where none is positive it stays linear.
    """
    positive = [value for value in values if value > 0.0]
    if not positive:
        axes.set(**{f"{name}lim": (0.0, 1.0)})
        return
    room = max((max(positive) / min(positive)) ** 0.06, 1.1)
    low, high = min(positive) / room, max(positive) * room
    axes.set(**{f"{name}scale": "log", f"{name}lim": (low, high)})
    ticks = _log_ticks(low, high)
    say = EngFormatter(sep=" ").format_eng
    axis = axes.xaxis if name == "x" else axes.yaxis
    axis.set_ticks(ticks, [say(tick).strip() for tick in ticks])
    axis.set_ticks([], minor=True)


def _log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers from ``low`` to ``high``: powers of ten, or closer ones within few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1,), (1, 2, 5)):
        found = [float(f"{digit}e{power}") for power in powers for digit in digits]
        inside = [tick for tick in found if low <= tick <= high]
        if len(inside) >= LEAST_NUMBERS:
            return inside[:: math.ceil(len(inside) / MOST_NUMBERS)]
    close = MaxNLocator(nbins=6, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [float(tick) for tick in close if low <= tick <= high]


def _efficiency_over_nodes(points: Sequence[ScalingPoint]) -> Plot:
    nodes = [float(point.nodes) for point in points]
    values = [100.0 * point.efficiency for point in points]
    with _settings("efficiency"):
        figure, axes = _over_nodes(points)
        axes.axhline(100.0, color=MUTED, linewidth=1.0, linestyle=(0, (5, 3)), zorder=1)
        axes.plot(nodes, values, color=CURVE, linewidth=1.4)
        _marks(axes, nodes, values)
        _name_last(axes, nodes[-1], values[-1], percent(points[-1].efficiency))
        axes.set_ylim(0.0, 1.06 * max(100.0, *values))
        axes.set_ylabel("%", color=MUTED)
        svg = _save(figure, "efficiency")
    lowest = min(points, key=lambda point: point.efficiency)
    words = (
        f"Weak-scaling efficiency over nodes, a line chart: lowest {percent(lowest.efficiency)} "
        f"on {lowest.nodes:,}, {percent(points[-1].efficiency)} on {points[-1].nodes:,}."
    )
    caption = "A node's OPS over those in the smallest run."
    return Plot("Weak-scaling efficiency", caption, words, svg)


def _over_nodes(points: Sequence[ScalingPoint]) -> tuple[Figure, Axes]:
    """Return a drawing whose logarithmic axis has a mark for each number of nodes."""
    figure = Figure(figsize=(WIDTH, HEIGHT))
    FigureCanvasSVG(figure)
    axes = figure.add_axes((0.062, 0.19, 0.855, 0.74))
    _dress(axes)
    nodes = sorted({point.nodes for point in points})
    low, high = nodes[0] * (nodes[0] / nodes[-1]) ** 0.03, nodes[-1]
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    places = [math.log(n / low) / math.log(high / low) for n in nodes]
    shown = [nodes[i] for i in _apart(places, [len(f"{n:,}") for n in nodes])]
    axes.set_xticks(shown, [f"{n:,}" for n in shown])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("nodes", color=MUTED)
    return figure, axes


def _apart(places: Sequence[float], letters: Sequence[int]) -> list[int]:
    """Return which labels can stand side by side, the last one first of all.

    Args:
        places: of their middles, as parts of the width of a drawing, ascending.
        letters: of each.
    """
    shown: list[int] = []
    free = math.inf
    for i in reversed(range(len(places))):
        half = (letters[i] + 1) / 2.0 / LETTERS
        if places[i] + half <= free:
            shown.append(i)
            free = places[i] - half
    return shown[::-1]


def _all(points: Sequence[ScoreStatus], name: str) -> list[float | None]:
    return [getattr(point, name) for point in points]


def accuracy_colour(place: float) -> str:
    """Return the colour of a place between 0 and 1 on a scale that colour-blind readers see."""
    red, green, blue, _ = mpl.colormaps["cividis"](min(1.0, max(0.0, place)), bytes=True)
    return f"#{red:02x}{green:02x}{blue:02x}"


def _time_unit(seconds: float) -> tuple[float, str]:
    if seconds >= 2 * 3600:
        return 3600.0, "hours"
    return (60.0, "minutes") if seconds >= 180 else (1.0, "seconds")


@contextmanager
def _settings(name: str) -> Iterator[None]:
    """Draw by fixed settings, whatever this user's own are, and with fixed identifiers."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams["svg.hashsalt"] = f"aiperf-{name}"
        mpl.rcParams["svg.fonttype"] = "none"
        mpl.rcParams["font.family"] = ["sans-serif"]
        mpl.rcParams["font.size"] = 9.0
        yield


def _plot(measure: _Measure, times: list[float], marks: list[float], unit: str) -> Plot:
    known = [v for v in (*measure.values, *measure.official) if v is not None]
    factor, prefix = (0.01, "") if measure.unit == "%" else scale_of(max(known))
    step = math.ceil(len(marks) / MOST_MARKS)
    shown = [i for i in range(len(marks)) if (len(marks) - 1 - i) % step == 0]
    with _settings(measure.name):
        figure = Figure(figsize=(WIDTH, HEIGHT))
        FigureCanvasSVG(figure)
        axes = figure.add_axes((0.062, 0.19, 0.855, 0.74))
        _curve(axes, times, _scaled(measure.values, factor), steps=measure.unit == "%")
        official = _scaled(measure.official, factor)
        _marks(axes, [marks[i] for i in shown], [official[i] for i in shown])
        _name_last(axes, marks[-1], official[-1], _say(measure, measure.last))
        _frame(axes, marks[-1], max(known) / factor, f"{prefix}{measure.unit}", unit)
        if measure.unit == "%":
            _limit(axes)
        svg = _save(figure, measure.name)
    return Plot(measure.title, _caption(step), _describe(measure, times, unit), svg)


def _scaled(values: Sequence[float | None], factor: float) -> list[float]:
    return [math.nan if value is None else value / factor for value in values]


def _curve(axes: Axes, times: list[float], values: list[float], *, steps: bool) -> None:
    style = "steps-post" if steps else "default"
    axes.plot(times, values, color=CURVE, linewidth=1.4, drawstyle=style, solid_joinstyle="round")


def _marks(axes: Axes, times: list[float], values: list[float]) -> None:
    axes.plot(
        times,
        values,
        linestyle="none",
        marker="o",
        markersize=4.2,
        markerfacecolor=PAPER,
        markeredgecolor=CURVE,
        markeredgewidth=1.2,
        clip_on=False,
        zorder=3,
    )


def _name_last(axes: Axes, time: float, value: float, text: str) -> None:
    axes.plot([time], [value], marker="o", markersize=6, color=CURVE, clip_on=False, zorder=4)
    axes.annotate(
        text,
        (time, value),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        color=INK,
        fontweight="bold",
        annotation_clip=False,
    )


def _frame(axes: Axes, end: float, most: float, unit: str, time_unit: str) -> None:
    axes.set_xlim(0.0, end)
    axes.set_ylim(0.0, 1.06 * most if most > 0.0 else 1.0)
    axes.set_xlabel(f"{time_unit} since the start", color=MUTED)
    axes.set_ylabel(unit, color=MUTED)
    _dress(axes)


def _dress(axes: Axes) -> None:
    """Leave a light grid and nothing that asks for attention."""
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED, length=3, color=GRID)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.patch.set_visible(False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:.6g}")


def _limit(axes: Axes) -> None:
    """Draw the largest error that the rules allow."""
    limit = 100.0 * MOST_ERROR
    axes.set_ylim(0.0, max(axes.get_ylim()[1], limit * 1.15))
    axes.axhline(limit, color=LIMIT, linewidth=1.0, linestyle=(0, (5, 3)), zorder=1)
    axes.annotate(
        f"at most {limit:g}% is valid",
        (1.0, limit),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        color=LIMIT,
    )


def _save(figure: Figure, name: str) -> Markup:
    """Return the figure as an SVG element that can stand inside a page, beside others."""
    figure.patch.set_visible(False)
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = svg.replace("<svg ", '<svg class="plot" role="presentation" aria-hidden="true" ', 1)
    # Identifiers are unique within one drawing only; the page has several.
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\1{name}-", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return Markup(svg)  # noqa: S704 -- drawn here, and of numbers alone


def _say(measure: _Measure, value: float) -> str:
    return percent(value) if measure.unit == "%" else si(value, measure.unit)


def _caption(step: int) -> str:
    return "" if step == 1 else f"One official point in {step} is marked."


def _describe(measure: _Measure, times: list[float], unit: str) -> str:
    known = [(v, t) for t, v in zip(times, measure.values, strict=True) if v is not None]
    (least, low), (most, high) = min(known), max(known)
    return (
        f"{measure.title}, a line chart: lowest {_say(measure, least)} at {low:.3g} {unit}, "
        f"highest {_say(measure, most)} at {high:.3g} {unit}, "
        f"{_say(measure, measure.last)} at the end."
    )
