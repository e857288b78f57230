"""Plots of time to accuracy over thresholds, and of cost over time with the Pareto front."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from aiperf_hpc.analysis.sections.cost import CostToAccuracy, Priced
from aiperf_hpc.analysis.sections.thresholds import Sensitivities, by_rank
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
"""Colors that are distinguishable in light and dark mode."""
Dashes = Literal["solid"] | tuple[int, tuple[int, ...]]
DASHES: tuple[Dashes, ...] = ("solid", (0, (4, 2)))
STYLES = [(color, dashes) for dashes in DASHES for color in LINES]
"""Distinguishable lines; all others share one style."""
LETTERS = 36
"""Maximum length of a name."""
LETTER = 5.0
"""Mean width of a letter in points."""
LINE = 10.0
"""Height of a name in points."""
_PLAIN = "{:,.6g}".format
"""Formatter of tick labels."""


class TimeCurve(NamedTuple):
    """Times of an entry over thresholds."""

    name: str
    seconds: tuple[float | None, ...]
    """Time to each threshold; None if it was never reached."""
    overtakes: tuple[int, ...]
    """Indices of thresholds at which it has overtaken another entry."""


def thresholds(found: Sensitivities) -> Iterator[Plot]:
    """Yield time over thresholds for each contest of several entries, if any reached one."""
    for place, contest in enumerate(found.contests):
        times: defaultdict[str, list[float | None]] = defaultdict(list)
        overtakes: defaultdict[str, list[int]] = defaultdict(list)
        for number, row in enumerate(contest.thresholds):
            for standing in row.standings:
                times[standing.entry].append(standing.seconds)
            for change in row.changes:
                if change.by == "time":
                    overtakes[change.ahead].append(number)
        entries = by_rank(contest)
        curves = [TimeCurve(each, tuple(times[each]), tuple(overtakes[each])) for each in entries]
        subject = f"{contest.benchmark}, {contest.quality}"
        values = [row.threshold for row in contest.thresholds]
        plot = threshold_plot(subject, values, contest.target, curves, f"thresholds-{place}")
        if plot is not None and len(entries) > 1:
            yield plot


def cost(found: CostToAccuracy) -> Iterator[Plot]:
    """Yield cost over time for each contest with several entries that have a cost."""
    for place, contest in enumerate(found.contests):
        if len(contest.priced) > 1:
            yield cost_plot(contest.title, contest.currency, contest.priced, f"cost-{place}")


def threshold_plot(
    subject: str,
    thresholds: Sequence[float],
    target: float | None,
    curves: Sequence[TimeCurve],
    name: str,
) -> Plot | None:
    """Draw time over thresholds, or return None if no threshold was reached.

    Args:
        subject: benchmark and quality of the thresholds, such as ``CIFAR10, top1Accuracy``.
        thresholds: from the easiest to the hardest.
        target: marked if it is one of the thresholds.
        curves: fastest first; only the first ones have a color of their own.
        name: unique name among a page's drawings.
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
        logarithmic(axes, "y", known, _PLAIN)
        axes.set_ylabel("time to the threshold, s")
        _legend(canvas.figure, curves)
    caption = (
        "Rings: the ranking changes; the entry has overtaken another one since the previous "
        "threshold. A line ends at the last threshold that its entry reached."
    )
    words = _thresholds_in_words(subject, thresholds, curves)
    return canvas.plot(f"Threshold sensitivity of {subject}", caption, words)


def cost_plot(subject: str, currency: str, points: Sequence[Priced], name: str) -> Plot:
    """Draw cost over time with the Pareto front.

    Args:
        subject: benchmark and target, such as ``CIFAR10, top1Accuracy ≥ 94``.
        currency: currency of the costs.
        points: fastest first.
        name: unique name among a page's drawings.
    """
    front = [point for point in points if point.on_front]
    with drawing(name, PANEL) as canvas:
        axes = canvas.axes((0.08, 0.11, 0.9, 0.84))
        _front(axes, points, front)
        logarithmic(axes, "x", [point.seconds for point in points], _PLAIN)
        logarithmic(axes, "y", [point.cost for point in points], _PLAIN)
        axes.set(xlabel="time to the target, s", ylabel=f"cost to the target, {currency}")
        _name(axes, [*front, *(point for point in points if not point.on_front)])
    fastest, cheapest = points[0], min(points, key=lambda point: (point.cost, point.seconds))
    words = (
        f"Cost over time of {len(points)} entries in {subject}, a scatter plot with logarithmic "
        f"axes: the fastest, {fastest.entry}, {fastest.seconds:.4g} s for {fastest.cost:.3g} "
        f"{currency}; the cheapest, {cheapest.entry}, {cheapest.seconds:.4g} s for "
        f"{cheapest.cost:.3g} {currency}; {len(front)} on the front."
    )
    caption = (
        "Dots and line: the Pareto front of entries that no other entry beats in both time and "
        "cost. Other entries are named as space permits."
    )
    return canvas.plot(f"Time and cost of {subject}", caption, words)


def _curve(axes: Axes, thresholds: Sequence[float], curve: TimeCurve, place: int) -> None:
    style = _style(place)
    seconds = scaled(curve.seconds, 1.0)
    axes.plot(
        thresholds, seconds, color=style[0], linestyle=style[1],
        linewidth=1.6 if place < len(STYLES) else 0.8, zorder=2 if place < len(STYLES) else 1,
        label=curve.name,
    )  # fmt: skip
    last = max((i for i, s in enumerate(curve.seconds) if s is not None), default=None)
    if last is not None:
        axes.plot([thresholds[last]], [seconds[last]], marker=".", color=style[0], clip_on=False)
    mark_points(
        axes, [thresholds[i] for i in curve.overtakes], [seconds[i] for i in curve.overtakes],
        markersize=5.0, markeredgecolor=style[0], gid=f"changes-{place}",
    )  # fmt: skip


def _style(place: int) -> tuple[str, Dashes]:
    return STYLES[place] if place < len(STYLES) else (MUTED, "solid")


def _mark_target(axes: Axes, target: float, *, is_last: bool) -> None:
    """Mark the target, with the label to its right unless it is the last threshold."""
    axes.axvline(target, color=INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=0)
    offset, side = ((-4, -2), "right") if is_last else ((4, -2), "left")
    place = {"xycoords": ("data", "axes fraction"), "ha": side, "va": "top"}
    name_point(axes, f"target {target:g}", (target, 1.0), offset, **place)


def _limits(thresholds: Sequence[float]) -> tuple[float, float]:
    """Return the limits of the axis, with the hardest threshold to the right."""
    first, last = thresholds[0], thresholds[-1]
    room = 0.02 * (last - first) or 0.05 * abs(first) or 0.05
    return first - room, last + room


def _legend(figure: Figure, curves: Sequence[TimeCurve]) -> None:
    """Draw the legend next to the plot, with the fastest entry on top."""
    shown = list(zip(STYLES, curves, strict=False))
    lines = [Line2D([], [], color=c, linestyle=d, linewidth=1.6) for (c, d), _ in shown]
    names = [_short(curve.name) for _, curve in shown]
    if (more := len(curves) - len(shown)) > 0:
        lines.append(Line2D([], [], color=MUTED, linewidth=0.8))
        names.append(f"{more} slower ones")
    figure.legend(
        lines, names, loc="upper left", bbox_to_anchor=(0.73, 0.96), fontsize=8.0,
        handlelength=2.2, borderaxespad=0.0,
    )  # fmt: skip


def _front(axes: Axes, points: Sequence[Priced], front: Sequence[Priced]) -> None:
    rest = [point for point in points if not point.on_front]
    mark_points(
        axes, [p.seconds for p in rest], [p.cost for p in rest], markersize=5.0,
        markeredgecolor=MUTED, gid="beaten",
    )  # fmt: skip
    for point in points:  # Nothing is drawn: the names of the points are for the data.
        axes.plot([point.seconds], [point.cost], linestyle="none", label=point.entry)
    axes.plot(
        [p.seconds for p in front], [p.cost for p in front], color=CURVE, linewidth=1.2,
        drawstyle="steps-post", marker="o", markersize=6.0, clip_on=False, zorder=3, gid="front",
    )  # fmt: skip


def _name(axes: Axes, points: Sequence[Priced]) -> None:
    """Label the points of the front, and as many others as fit, in their order."""
    to_points = 72.0 / axes.figure.dpi
    places = to_points * axes.transData.transform([(p.seconds, p.cost) for p in points])
    dots = [Bbox.from_bounds(x - 4.0, y - 4.0, 8.0, 8.0) for x, y in places]
    paper = Bbox(to_points * axes.transAxes.transform([(0.0, 0.0), (1.0, 1.0)]))
    taken = list(dots)
    for point, dot in zip(points, dots, strict=True):
        text = _short(point.entry)
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
    """Return the box of a label next to a dot: to the right or left, above or below."""
    left = dot.x1 + 3.0 if side > 0 else dot.x0 - 3.0 - width
    bottom = dot.y1 - 4.0 if level > 0 else dot.y0 + 4.0 - LINE
    return Bbox.from_bounds(left, bottom, width, LINE)


def _write(axes: Axes, point: Priced, text: str, side: int, level: int) -> None:
    name_point(
        axes, text, (point.seconds, point.cost), (7 * side, 0), fontsize=8.0,
        ha="left" if side > 0 else "right", va="bottom" if level > 0 else "top",
        color=INK if point.on_front else MUTED,
    )  # fmt: skip


def _short(name: str) -> str:
    """Return a name without its benchmark, cut to the maximum length."""
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
