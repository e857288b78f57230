"""Time to accuracy over thresholds, and time against cost with the front of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from aiperf_hpc.results.report.plots.figure import (
    CURVE,
    INK,
    MUTED,
    Plot,
    drawing,
    logarithmic,
    mark_points,
    name_point,
    scaled,
)

PANEL = 4.6
LINES = ("#3b82c4", "#d0702d", "#5a9a2f", "#a85db0")
"""Told apart on light and on dark paper."""
DASHES: tuple[Literal["solid"] | tuple[int, tuple[int, ...]], ...] = ("solid", (0, (4, 2)))
LETTERS = 36
"""Of a name that has room."""
LETTER = 5.0
"""The width of a letter in points, at most on average."""
LINE = 10.0
"""The height of a name in points."""


@dataclass(frozen=True, slots=True)
class TimeCurve:
    """An entry over thresholds."""

    name: str
    seconds: tuple[float | None, ...]
    """To each threshold; None where it was never reached."""
    overtakes: tuple[int, ...]
    """At which thresholds, by their places, it is ahead of one that it was behind before."""


@dataclass(frozen=True, slots=True)
class CostPoint:
    """An entry's way to the target."""

    name: str
    seconds: float
    cost: float
    on_front: bool


def threshold_plot(
    subject: str,
    thresholds: Sequence[float],
    target: float | None,
    curves: Sequence[TimeCurve],
    name: str,
) -> Plot | None:
    """Draw time over thresholds, from the easiest to the hardest; None without any time.

    Args:
        subject: whose thresholds they are, as ``CIFAR10, top1Accuracy``.
        thresholds: in the order in which they are harder.
        target: marked where it is among them.
        curves: the fastest first; as many are told apart as there are colours and dashes.
        name: unique among a page's drawings.
    """
    known = [s for curve in curves for s in curve.seconds if s is not None]
    if not known:
        return None
    with drawing(name, PANEL) as canvas:
        axes = canvas.axes((0.08, 0.11, 0.645, 0.84))
        for place, curve in reversed(list(enumerate(curves))):
            _curve(axes, thresholds, curve, place)
        if target in thresholds:
            _mark_target(axes, float(target or 0.0), is_last=target == thresholds[-1])
        axes.set(xlim=_limits(thresholds), xlabel=f"threshold, {subject}")
        _logarithmic(axes, "y", known)
        axes.set_ylabel("time to the threshold, s")
        _legend(canvas.figure, curves)
    caption = (
        "Rings: the ranking changes there; the entry has overtaken another since the threshold "
        "before. A line ends at the last threshold that its entry reached."
    )
    words = _thresholds_in_words(subject, thresholds, curves)
    return Plot(f"Threshold sensitivity of {subject}", caption, words, canvas.svg)


def cost_plot(subject: str, currency: str, points: Sequence[CostPoint], name: str) -> Plot | None:
    """Draw cost over time with the front of both; None without any entry.

    Args:
        subject: of what, as ``CIFAR10, top1Accuracy ≥ 94``.
        currency: of the costs.
        points: the fastest first.
        name: unique among a page's drawings.
    """
    if not points:
        return None
    front = [point for point in points if point.on_front]
    with drawing(name, PANEL) as canvas:
        axes = canvas.axes((0.08, 0.11, 0.9, 0.84))
        _front(axes, points, front)
        _logarithmic(axes, "x", [point.seconds for point in points])
        _logarithmic(axes, "y", [point.cost for point in points])
        axes.set(xlabel="time to the target, s", ylabel=f"cost to the target, {currency}")
        _name(axes, [*front, *(point for point in points if not point.on_front)])
    fastest, cheapest = points[0], min(points, key=lambda point: (point.cost, point.seconds))
    words = (
        f"Cost over time of {len(points)} entries in {subject}, a scatter plot with logarithmic "
        f"axes: the fastest, {fastest.name}, {fastest.seconds:.4g} s for {fastest.cost:.3g} "
        f"{currency}; the cheapest, {cheapest.name}, {cheapest.seconds:.4g} s for "
        f"{cheapest.cost:.3g} {currency}; {len(front)} on the front."
    )
    caption = (
        "Dots and line: the front, of entries that no other one beats in both time and cost. "
        "Others are named where there is room."
    )
    return Plot(f"Time and cost of {subject}", caption, words, canvas.svg)


def _curve(axes: Axes, thresholds: Sequence[float], curve: TimeCurve, place: int) -> None:
    style = _style(place)
    seconds = scaled(curve.seconds, 1.0)
    axes.plot(
        thresholds, seconds, color=style[0], linestyle=style[1],
        linewidth=1.6 if place < _told_apart() else 0.8, zorder=2 if place < _told_apart() else 1,
    )  # fmt: skip
    last = max((i for i, s in enumerate(curve.seconds) if s is not None), default=None)
    if last is not None:
        axes.plot([thresholds[last]], [seconds[last]], marker=".", color=style[0], clip_on=False)
    mark_points(
        axes, [thresholds[i] for i in curve.overtakes], [seconds[i] for i in curve.overtakes],
        markersize=5.0, markeredgecolor=style[0], gid=f"changes-{place}",
    )  # fmt: skip


def _told_apart() -> int:
    return len(LINES) * len(DASHES)


def _style(place: int) -> tuple[str, Literal["solid"] | tuple[int, tuple[int, ...]]]:
    if place >= _told_apart():
        return MUTED, "solid"
    return LINES[place % len(LINES)], DASHES[place // len(LINES)]


def _mark_target(axes: Axes, target: float, *, is_last: bool) -> None:
    """Mark the target; left of it would be the numbers of the axis where it is the first."""
    axes.axvline(target, color=INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=0)
    offset, side = ((-4, -2), "right") if is_last else ((4, -2), "left")
    place = {"xycoords": ("data", "axes fraction"), "ha": side, "va": "top"}
    name_point(axes, f"target {target:g}", (target, 1.0), offset, **place)


def _limits(thresholds: Sequence[float]) -> tuple[float, float]:
    """Return where the axis begins and ends: the hardest threshold is to the right."""
    first, last = thresholds[0], thresholds[-1]
    room = 0.02 * (last - first) or 0.05 * abs(first) or 0.05
    return first - room, last + room


def _legend(figure: Figure, curves: Sequence[TimeCurve]) -> None:
    """Name the lines beside the drawing, the fastest on top."""
    told = _told_apart()
    lines = [
        Line2D([], [], color=_style(place)[0], linestyle=_style(place)[1], linewidth=1.6)
        for place in range(min(len(curves), told))
    ]
    names = [_short(curve.name) for curve in curves[:told]]
    if len(curves) > told:
        lines.append(Line2D([], [], color=MUTED, linewidth=0.8))
        names.append(f"{len(curves) - told} slower ones")
    figure.legend(
        lines, names, loc="upper left", bbox_to_anchor=(0.73, 0.96), fontsize=8.0,
        handlelength=2.2, borderaxespad=0.0,
    )  # fmt: skip


def _front(axes: Axes, points: Sequence[CostPoint], front: Sequence[CostPoint]) -> None:
    rest = [point for point in points if not point.on_front]
    mark_points(
        axes, [p.seconds for p in rest], [p.cost for p in rest], markersize=5.0,
        markeredgecolor=MUTED, gid="beaten",
    )  # fmt: skip
    axes.plot(
        [p.seconds for p in front], [p.cost for p in front], color=CURVE, linewidth=1.2,
        drawstyle="steps-post", marker="o", markersize=6.0, clip_on=False, zorder=3, gid="front",
    )  # fmt: skip


def _name(axes: Axes, points: Sequence[CostPoint]) -> None:
    """Name those on the front, and as many others as have room, the first ones first."""
    to_points = 72.0 / axes.figure.dpi
    places = to_points * axes.transData.transform([(p.seconds, p.cost) for p in points])
    dots = [Bbox.from_bounds(x - 4.0, y - 4.0, 8.0, 8.0) for x, y in places]
    paper = Bbox(to_points * axes.transAxes.transform([(0.0, 0.0), (1.0, 1.0)]))
    taken = list(dots)
    for point, dot in zip(points, dots, strict=True):
        text = _short(point.name)
        labels = {
            corner: _label(dot, LETTER * len(text), *corner) for corner in product((1, -1), (1, -1))
        }
        free = (
            corner
            for corner, label in labels.items()
            if paper.x0 <= label.x0 and label.x1 <= paper.x1 and paper.y0 <= label.y0
            and not any(label.overlaps(other) for other in taken if other is not dot)
        )  # fmt: skip
        found = next(free, (1, 1) if point.on_front else None)
        if found is not None:
            taken.append(labels[found])
            _write(axes, point, text, *found)


def _label(dot: Bbox, width: float, side: int, level: int) -> Bbox:
    """Return the box of a name beside a dot: to the right or the left, above or below."""
    left = dot.x1 + 3.0 if side > 0 else dot.x0 - 3.0 - width
    bottom = dot.y1 - 4.0 if level > 0 else dot.y0 + 4.0 - LINE
    return Bbox.from_bounds(left, bottom, width, LINE)


def _write(axes: Axes, point: CostPoint, text: str, side: int, level: int) -> None:
    name_point(
        axes, text, (point.seconds, point.cost), (7 * side, 0), fontsize=8.0,
        ha="left" if side > 0 else "right", va="bottom" if level > 0 else "top",
        color=INK if point.on_front else MUTED,
    )  # fmt: skip


def _logarithmic(axes: Axes, name: Literal["x", "y"], values: Sequence[float]) -> None:
    """Make an axis logarithmic with plain numbers: nobody pays in millidollars."""
    logarithmic(axes, name, values)
    axis = axes.xaxis if name == "x" else axes.yaxis
    ticks = [float(tick) for tick in axis.get_ticklocs()]
    axis.set_ticks(ticks, [f"{tick:,.6g}" for tick in ticks])


def _short(name: str) -> str:
    """Return a name without its benchmark, cut where it has no room."""
    own = name.partition("/")[2] or name
    return own if len(own) <= LETTERS else f"{own[: LETTERS - 1]}…"


def _thresholds_in_words(
    subject: str, thresholds: Sequence[float], curves: Sequence[TimeCurve]
) -> str:
    told = []
    for place, threshold in ((0, thresholds[0]), (len(thresholds) - 1, thresholds[-1])):
        reached = [(c.seconds[place], c.name) for c in curves]
        known = [(seconds, name) for seconds, name in reached if seconds is not None]
        fastest = f", the fastest {min(known)[1]} in {min(known)[0]:.4g} s" if known else ""
        told.append(f"{len(known)} of {len(curves)} entries reach {threshold:g}{fastest}")
    changed = sum(any(i in c.overtakes for c in curves) for i in range(len(thresholds)))
    return (
        f"Time over thresholds of {subject}, a line chart with a logarithmic axis of time: "
        f"{told[0]}; {told[1]}; the ranking changes at {changed} of {len(thresholds)} thresholds."
    )
