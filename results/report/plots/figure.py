"""What all plots share: colors, settings, axes, what is marked on them, and saving as SVG.

Matplotlib knows no style sheets: it is given stand-in colors, which are then replaced by CSS
variables, so that one drawing serves light, dark and paper.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

INK, MUTED, GRID, CURVE, LIMIT, PAPER = (f"#0{n}0{n}0{n}" for n in range(1, 7))
_COLORS = {
    INK: ("var(--ink)", "#1a1f25"),
    MUTED: ("var(--muted)", "#56616c"),
    GRID: ("var(--line)", "#dde2e7"),
    CURVE: ("var(--curve)", "#0b5c99"),
    LIMIT: ("var(--bad)", "#b3261e"),
    PAPER: ("var(--surface)", "#ffffff"),
}
"""The stand-ins' variables in the style sheet, and their colors outside of a page."""


def of_its_own(svg: str) -> str:
    """Return a drawing that was made for a page in the colours of one that stands in none."""
    for variable, colour in _COLORS.values():
        svg = svg.replace(variable, colour)
    return svg


def quality_colour(place: float) -> str:
    """Return the colour of a place between 0 and 1 on a scale that colour-blind readers see."""
    red, green, blue, _ = mpl.colormaps["cividis"](min(1.0, max(0.0, place)), bytes=True)
    return f"#{red:02x}{green:02x}{blue:02x}"


WIDTH, HEIGHT = 11.0, 2.45
"""Inches at 72 points each; the page scales them to its width."""
BOX = (0.062, 0.19, 0.855, 0.74)
"""Where axes are by default, with room for their labels and for the last value's."""
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
"""A light grid, and nothing that asks for attention."""
_LINES = ("#0b5c99", "#b0500f", "#4b7f1f", "#8a3d8f")
_DASHES = ("solid", "dashed", "dotted")
IDEAL = (0, (5, 3))
"""The dashes of lines of what would be ideal."""

LEAST_NUMBERS, MOST_NUMBERS = 3, 9
"""How few and how many numbers a logarithmic axis has."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawing with its words."""

    title: str
    caption: str
    description: str
    """The drawing in words, for those who do not see it."""
    svg: Markup


@dataclass(slots=True)
class Canvas:
    """A drawing in the making; ``svg`` is there once its block has ended."""

    figure: Figure
    svg: Markup = Markup("")

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
    """Draw by fixed settings, whatever this user's own are, and with fixed identifiers."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams["svg.hashsalt"] = f"aiperf-{name}"
        mpl.rcParams.update(_SETTINGS)
        figure = Figure(figsize=(WIDTH, height))
        FigureCanvasSVG(figure)
        canvas = Canvas(figure)
        yield canvas
        canvas.svg = _save(figure, name)


def _number_plainly(axes: Axes) -> None:
    axes.patch.set_visible(False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:.6g}")


def logarithmic(axes: Axes, name: Literal["x", "y"], values: Iterable[float]) -> None:
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
    """Return what tells one of several lines from the others."""
    color, dashes = _LINES[number % len(_LINES)], _DASHES[number // len(_LINES) % len(_DASHES)]
    return {"color": color, "linestyle": dashes}


def scaled(values: Sequence[float | None], factor: float) -> list[float]:
    """Return values in units of ``factor``; None, of which nothing is drawn, as nan."""
    return [math.nan if value is None else value / factor for value in values]


def evenly(count: int, most: int) -> list[int]:
    """Return at most ``most`` of the first ``count`` numbers, the first and the last included."""
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def _name_log_scales(figure: Figure) -> None:
    """Say beside what each logarithmic axis shows that it is one."""
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if axis.get_scale() == "log" and (shown := axis.get_label_text()):
            axis.set_label_text(f"{shown} (log scale)")


def _save(figure: Figure, name: str) -> Markup:
    """Return the figure as an SVG element that can stand inside a page, beside others."""
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
    # Identifiers are unique within one drawing only; the page has several.
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\1{name}-", svg)
    for colour, (variable, _) in _COLORS.items():
        svg = svg.replace(colour, variable)
    return Markup(svg)  # noqa: S704 -- drawn here, and of numbers alone
