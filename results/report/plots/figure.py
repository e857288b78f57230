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
from typing import Literal

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

INK, MUTED, GRID, CURVE, LIMIT, PAPER = (f"#0{n}0{n}0{n}" for n in range(1, 7))
_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--line",
    CURVE: "--curve",
    LIMIT: "--bad",
    PAPER: "--surface",
}
_ALONE = {
    "--ink": "#1a1f25",
    "--muted": "#56616c",
    "--line": "#dde2e7",
    "--curve": "#0b5c99",
    "--bad": "#b3261e",
    "--surface": "#ffffff",
}


def of_the_page(svg: str) -> str:
    """Return a drawing in the colours of the style sheet of the page that it will stand in."""
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg


def of_its_own(svg: str) -> str:
    """Return a drawing that was made for a page in the colours of one that stands in none."""
    for variable, colour in _ALONE.items():
        svg = svg.replace(f"var({variable})", colour)
    return svg


def quality_colour(place: float) -> str:
    """Return the colour of a place between 0 and 1 on a scale that colour-blind readers see."""
    red, green, blue, _ = mpl.colormaps["cividis"](min(1.0, max(0.0, place)), bytes=True)
    return f"#{red:02x}{green:02x}{blue:02x}"


WIDTH, HEIGHT = 11.0, 2.45
"""Inches at 72 points each; the page scales them to its width."""

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


@contextmanager
def settings(name: str) -> Iterator[None]:
    """Draw by fixed settings, whatever this user's own are, and with fixed identifiers."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams["svg.hashsalt"] = f"aiperf-{name}"
        mpl.rcParams["svg.fonttype"] = "none"
        mpl.rcParams["font.family"] = ["sans-serif"]
        mpl.rcParams["font.size"] = 9.0
        yield


def new_figure(height: float = HEIGHT) -> Figure:
    """Return an empty drawing, ``WIDTH`` wide, that can be saved as SVG."""
    figure = Figure(figsize=(WIDTH, height))
    FigureCanvasSVG(figure)
    return figure


def new_axes() -> tuple[Figure, Axes]:
    """Return a drawing of ``HEIGHT`` with axes, and room for their words and the last value's."""
    figure = new_figure()
    return figure, figure.add_axes((0.062, 0.19, 0.855, 0.74))


def dress(axes: Axes) -> None:
    """Leave a light grid and nothing that asks for attention."""
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED, length=3, color=GRID)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
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


def mark_points(axes: Axes, places: list[float], values: list[float]) -> None:
    """Draw a ring at each point."""
    axes.plot(
        places,
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


def name_last(axes: Axes, place: float, value: float, text: str) -> None:
    """Draw a dot at the last point, with its value beside it."""
    axes.plot([place], [value], marker="o", markersize=6, color=CURVE, clip_on=False, zorder=4)
    axes.annotate(
        text,
        (place, value),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        color=INK,
        fontweight="bold",
        annotation_clip=False,
    )


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


def save(figure: Figure, name: str) -> Markup:
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
    return Markup(of_the_page(svg))  # noqa: S704 -- drawn here, and of numbers alone
