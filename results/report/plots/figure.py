"""Shared parts of all plots: colors, settings, axes, markers, and export as SVG and CSV.

Matplotlib does not support style sheets: it draws with placeholder colors, which are then replaced
by CSS variables, so that one drawing is legible in light mode, in dark mode and on paper.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from matplotlib.ticker import EngFormatter, FixedLocator, MaxNLocator

from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.streams import without_controls, without_stand_ins

INK, MUTED, GRID, CURVE, LIMIT, PAPER = (f"#0{n}0{n}0{n}" for n in range(1, 7))
_COLORS = {
    INK: ("var(--ink)", "#1a1f25"),
    MUTED: ("var(--muted)", "#56616c"),
    GRID: ("var(--line)", "#dde2e7"),
    CURVE: ("var(--curve)", "#0b5c99"),
    LIMIT: ("var(--bad)", "#b3261e"),
    PAPER: ("var(--surface)", "#ffffff"),
}
"""CSS variable of each placeholder color, and its color outside a page."""


def of_its_own(svg: str) -> str:
    """Return a page's drawing as a standalone file, with fixed colors."""
    for variable, color in _COLORS.values():
        svg = svg.replace(variable, color)
    return svg


def quality_color(place: float) -> str:
    """Return the color of a value between 0 and 1 on a scale for color-blind readers."""
    red, green, blue, _ = mpl.colormaps["cividis"](min(1.0, max(0.0, place)), bytes=True)
    return f"#{red:02x}{green:02x}{blue:02x}"


WIDTH, HEIGHT = 11.0, 2.45
"""Size in inches of 72 points; the page scales drawings to its width."""
BOX = (0.062, 0.19, 0.855, 0.74)
"""Default position of axes, with room for their labels and for the label of the last value."""
_SETTINGS: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": GRID,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": MUTED,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],  # Each text of a drawing repeats the list.
    "font.size": 9.0,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.labelcolor": MUTED,
    "lines.linewidth": 1.4,
    "svg.fonttype": "none",
    "text.parse_math": False,  # A name with dollars is no formula.
    **{f"{axis}tick.color": GRID for axis in "xy"},
    **{f"{axis}tick.labelcolor": MUTED for axis in "xy"},
    **{f"{axis}tick.major.size": 3.0 for axis in "xy"},
}
"""Matplotlib settings of all plots."""
_FONT = "font-size:9px;font-family:'DejaVu Sans',sans-serif"
"""Font of a drawing's texts, as Matplotlib writes it."""
_LINES = ("#0b5c99", "#b0500f", "#4b7f1f", "#8a3d8f")
_DASHES = ("solid", "dashed", "dotted")
IDEAL = (0, (5, 3))
"""Dashes of ideal lines."""

LEAST_NUMBERS, MOST_NUMBERS = 3, 9
"""Minimum and maximum number of tick labels on a logarithmic axis."""


class Plot(NamedTuple):
    """A drawing with its texts and its data."""

    title: str
    caption: str
    description: str
    """Alternative text for screen readers."""
    svg: Markup
    csv: str
    """Labelled data of the drawing, a row per point."""

    @property
    def file_name(self) -> str:
        """Name of its downloaded files, without extension."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    @property
    def svg_link(self) -> str:
        """Standalone drawing as a ``data:`` URL."""
        return _data_url("image/svg+xml", of_its_own(self.svg))

    @property
    def csv_link(self) -> str:
        """Data as a ``data:`` URL."""
        return _data_url("text/csv", self.csv)


def _data_url(kind: str, text: str) -> str:
    # Percent-encoding is shorter than base64 for numbers and names.
    content = quote(without_controls(without_stand_ins(text)), safe="!$*+,;=:@/")
    return f"data:{kind};charset=utf-8,{content}"


@dataclass(slots=True)
class Canvas:
    """A drawing; ``svg`` and ``csv`` are set at the end of its ``drawing`` block."""

    figure: Figure
    svg: Markup = Markup("")
    csv: str = ""

    def plot(self, title: str, caption: str, description: str) -> Plot:
        """Return the finished drawing with its texts."""
        return Plot(title, caption, description, self.svg, self.csv)

    def write(self, path: Path) -> None:
        """Write the finished drawing to an SVG file of its own."""
        write_whole(path, of_its_own(self.svg))

    def axes(self, box: tuple[float, float, float, float] = BOX) -> Axes:
        """Return new axes within a box, in fractions of the drawing."""
        axes = self.figure.add_axes(box)
        _number_plainly(axes)
        return axes

    def panels(self, rows: int, columns: int, *, shared: Literal["x", "y", ""] = "") -> list[Axes]:
        """Return new axes in a grid."""
        grid = self.figure.subplots(
            rows, columns, squeeze=False, sharex=shared == "x", sharey=shared == "y"
        )
        found = list(grid.flat)
        for axes in found:
            _number_plainly(axes)
        return found


@contextmanager
def drawing(name: str, height: float = HEIGHT) -> Iterator[Canvas]:
    """Draw with fixed settings and identifiers, independent of the user's own settings."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams["svg.hashsalt"] = f"aiperf-{name}"
        mpl.rcParams.update(_SETTINGS)
        figure = Figure(figsize=(WIDTH, height))
        FigureCanvasSVG(figure)
        canvas = Canvas(figure)
        yield canvas
        canvas.csv = _data_of(figure)
        canvas.svg = _save(figure, name)


def _number_plainly(axes: Axes) -> None:
    axes.patch.set_visible(False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:.6g}")


_si = EngFormatter(sep=" ").format_eng


def logarithmic(
    axes: Axes,
    name: Literal["x", "y"],
    values: Iterable[float],
    text: Callable[[float], str] = _si,
) -> None:
    """Make an axis logarithmic, with a suitable number of tick labels for any range.

    The axis stays linear if no value is positive. Labels are numbers with SI prefixes unless
    ``text`` formats them.
    """
    positive = [value for value in values if value > 0.0]
    if not positive:
        axes.set(**{f"{name}lim": (0.0, 1.0)})
        return
    room = max((max(positive) / min(positive)) ** 0.06, 1.1)
    low, high = min(positive) / room, max(positive) * room
    axes.set(**{f"{name}scale": "log", f"{name}lim": (low, high)})
    ticks = _log_ticks(low, high)
    axis = axes.xaxis if name == "x" else axes.yaxis
    axis.set_ticks(ticks, [text(tick).strip() for tick in ticks])
    axis.set_ticks([], minor=True)


def _log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers from ``low`` to ``high``: powers of ten, or closer ones if those are
    too few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1,), (1, 2, 5)):
        found = [float(f"{digit}e{power}") for power in powers for digit in digits]
        inside = [tick for tick in found if low <= tick <= high]
        if len(inside) >= LEAST_NUMBERS:
            return inside[:: math.ceil(len(inside) / MOST_NUMBERS)]
    close = MaxNLocator(nbins=6, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [float(tick) for tick in close if low <= tick <= high]


def mark_points(
    axes: Axes, places: Sequence[float], values: Sequence[float], **style: object
) -> None:
    """Draw a ring at each point."""
    ring = {"markerfacecolor": PAPER, "markeredgecolor": CURVE, "markeredgewidth": 1.2}
    usual = {"linestyle": "none", "marker": "o", "markersize": 4.2, "clip_on": False, "zorder": 3}
    axes.plot(places, values, **{**ring, **usual, **style})  # type: ignore[arg-type]


def name_point(
    axes: Axes, text: str, place: tuple[float, float], offset: tuple[float, float], **style: object
) -> None:
    """Annotate a point; the offset to the right and above is in typographic points."""
    usual = {"va": "center", "color": INK, "annotation_clip": False, **style}
    axes.annotate(text, place, offset, textcoords="offset points", **usual)  # type: ignore[arg-type]


def name_last(axes: Axes, place: float, value: float, text: str) -> None:
    """Draw a dot at the last point, with its value beside it."""
    axes.plot([place], [value], marker="o", markersize=6, color=CURVE, clip_on=False, zorder=4)
    name_point(axes, text, (place, value), (8, 0), fontweight="bold")


def line_style(number: int) -> Any:  # noqa: ANN401 -- keywords of ``Axes.plot``
    """Return the color and dashes of one of several lines."""
    color, dashes = _LINES[number % len(_LINES)], _DASHES[number // len(_LINES) % len(_DASHES)]
    return {"color": color, "linestyle": dashes}


def scaled(values: Sequence[float | None], factor: float) -> list[float]:
    """Return values in units of ``factor``, with nan for None, which is not drawn."""
    return [math.nan if value is None else value / factor for value in values]


def evenly(count: int, most: int) -> list[int]:
    """Return at most ``most`` of the first ``count`` integers, including the first and last."""
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def _data_of(figure: Figure) -> str:
    """Return the labelled data of a figure as CSV: a column for each axis label, and a row for each
    point. Artists without a label are decoration. A panel without a y label takes that of the panel
    to its left."""
    rows, vertical = list[dict[str, str]](), "y"
    for axes in figure.axes:
        horizontal = axes.get_xlabel() or "x"
        vertical = axes.get_ylabel() or axes.get_title(loc="left") or vertical
        rows += [{"series": name, horizontal: x, vertical: y} for name, x, y in _series(axes)]
    text = io.StringIO()
    columns = dict.fromkeys(chain(("series",), *rows))
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _series(axes: Axes) -> Iterator[tuple[str, str, str]]:
    """Yield name, x and y of each labelled point."""
    categories = _categories(axes.xaxis)
    for line in axes.lines:
        if not (label := str(line.get_label())).startswith("_"):
            points = zip(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), strict=True)
            yield from ((label, categories.get(x, _number(x)), _number(y)) for x, y in points)
    for patch in axes.patches:
        if isinstance(patch, StepPatch) and not (label := str(patch.get_label())).startswith("_"):
            yield from _steps(label, patch)
    for container in axes.containers:
        if not (label := str(container.get_label())).startswith("_"):
            yield from _bars(label, container, _categories(axes.yaxis))


def _steps(label: str, patch: StepPatch) -> Iterator[tuple[str, str, str]]:
    """Yield the beginning of each step, for a band with its maximum and minimum."""
    values, edges, baseline = patch.get_data()
    if np.ndim(baseline) == 0:
        yield from ((label, _number(x), _number(y)) for x, y in zip(edges, values, strict=False))
        return
    for name, side in (("maximum", values), ("minimum", baseline)):
        for x, y in zip(edges, np.asarray(side), strict=False):
            yield f"{label}, {name}", _number(x), _number(y)


def _bars(
    label: str, container: object, categories: dict[float, str]
) -> Iterator[tuple[str, str, str]]:
    """Yield horizontal bars, or the points of error bars with their lower and upper ends."""
    if isinstance(container, BarContainer):
        for bar in container.patches:
            y = bar.get_y() + bar.get_height() / 2.0
            yield label, _number(bar.get_width()), categories.get(round(y, 6), _number(y))
    elif isinstance(container, ErrorbarContainer):
        line, _, bars = container.lines
        if line is not None:
            points = zip(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), strict=True)
            yield from ((label, _number(x), _number(y)) for x, y in points)
        for (x, low), (_, high) in (ends for each in bars for ends in each.get_segments()):
            yield f"{label}, lower", _number(x), _number(low)
            yield f"{label}, upper", _number(x), _number(high)


def _categories(axis: Axis) -> dict[float, str]:
    """Return the labels of an axis of categories by their positions; empty for numbers."""
    if axis.get_scale() == "log" or not isinstance(axis.get_major_locator(), FixedLocator):
        return {}
    labels = (tick.get_text() for tick in axis.get_ticklabels())
    return dict(zip(map(float, axis.get_ticklocs()), labels, strict=True))


def _number(value: float) -> str:
    if math.isnan(value):
        return ""
    # Sizes and counts stay exact; measurements need no more digits.
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.6g}"


def _name_log_scales(figure: Figure) -> None:
    """Mark each logarithmic axis in its label."""
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if axis.get_scale() == "log" and (shown := axis.get_label_text()):
            axis.set_label_text(f"{shown} (log scale)")


def _save(figure: Figure, name: str) -> Markup:
    """Return the figure as an inline SVG element of a page."""
    figure.patch.set_visible(False)
    _name_log_scales(figure)
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = svg.replace("<svg ", '<svg class="plot" role="presentation" aria-hidden="true" ', 1)
    # Identifiers are unique only within one drawing, and a page has several.
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\1{name}-", svg)
    for color, (variable, _) in _COLORS.items():
        svg = svg.replace(color, variable)
    svg = _shortened(svg)
    return Markup(svg)  # noqa: S704 -- drawn here, from numbers


def _shortened(svg: str) -> str:
    """Return a drawing without line breaks, with coordinates in hundredths of a point."""
    svg = re.sub(r">\s+<", "><", svg)
    svg = re.sub(r' transform="rotate\(-0 [^"]*"', "", svg)
    svg = re.sub(r'(?<= style=")[^"]*', lambda style: re.sub(r"([:;,]) ", r"\1", style[0]), svg)
    svg = re.sub(r'(?<= d=")[^"]*', lambda path: _short_path(path[0]), svg)
    # The elements inherit what is stated once: the font, and a tick's color from its definition.
    svg = svg.replace(f"{_FONT};", "").replace("<svg ", f'<svg style="{_FONT}" ', 1)
    svg = re.sub(r'(<use [^>]*) style="fill:([^;"]*);stroke:\2;stroke-width:0\.8"', r"\1", svg)
    places = r'(?<= )(?:d|x|y|width|height|transform)="[^"]*"'
    return re.sub(places, lambda place: re.sub(r"\d+\.\d{3,}", _hundredths, place[0]), svg)


def _short_path(path: str) -> str:
    return re.sub(r"\s+", ",", re.sub(r"\s*([A-Za-z])\s*", r"\1", path).strip())


def _hundredths(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")
