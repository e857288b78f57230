"""OPS, regulated score and error over the time of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from aiperf_hpc.formatting import percent, scale_of, si
from aiperf_hpc.ops_counter.divisions.work import MOST_ERROR
from aiperf_hpc.results.report.plots.colours import CURVE, LIMIT, MUTED
from aiperf_hpc.results.report.plots.figure import (
    Plot,
    dress,
    mark_points,
    name_last,
    new_axes,
    save,
    scaled,
    settings,
)
from aiperf_hpc.results.views.score import ScoreStatus

MOST_MARKS = 120
"""The number of official points above which a part is marked: marks would hide the curve."""
MOST_STEPS = 300
"""The number of intervals above which several are drawn as one."""


@dataclass(frozen=True, slots=True)
class _Measure:
    name: str
    title: str
    unit: str
    values: list[float | None]
    """The measure at each point of the curve; None before there was any."""
    official: list[float | None]
    last: float
    steps: tuple[list[float], list[float]] | None = None
    """Seconds at which official intervals end, and the measure in each alone, where that is
    something else."""
    together: int = 1
    """How many official intervals are one of these."""


def score_plots(fine: Sequence[ScoreStatus], official: Sequence[ScoreStatus]) -> list[Plot]:
    """Return the plots of OPS, regulated score and error over time.

    A measure that the last point does not have is left out, and so are operations where none
    were executed.

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
    factor, unit = time_unit(official[-1].elapsed_seconds)
    times = [p.elapsed_seconds / factor for p in fine]
    marks = [p.elapsed_seconds / factor for p in official]
    return [
        _plot(
            _Measure(
                name,
                title,
                of,
                _all(fine, name),
                _all(official, name),
                last,
                *(_steps(official) if name == "ops" else ()),
            ),
            times,
            marks,
            unit,
        )
        for name, title, of in wanted
        if (last := getattr(official[-1], name)) is not None and (last > 0.0 or name == "error")
    ]


def interval_ops(official: Sequence[ScoreStatus]) -> list[float]:
    """Return the operations a second of each interval between official points alone."""
    before, rates = (0.0, 0), []
    for point in official:
        seconds, operations = point.elapsed_seconds - before[0], point.operations - before[1]
        rates.append(operations / seconds if seconds > 0.0 else 0.0)
        before = point.elapsed_seconds, point.operations
    return rates


def _steps(official: Sequence[ScoreStatus]) -> tuple[tuple[list[float], list[float]], int]:
    """Return the ends and rates of intervals, and how many official ones each of them is."""
    together = math.ceil(len(official) / MOST_STEPS)
    ends = [p for i, p in enumerate(official) if (len(official) - 1 - i) % together == 0]
    return ([point.elapsed_seconds for point in ends], interval_ops(ends)), together


def _all(points: Sequence[ScoreStatus], name: str) -> list[float | None]:
    return [getattr(point, name) for point in points]


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit in which so much time reads best: its seconds, and its name."""
    if seconds >= 2 * 3600:
        return 3600.0, "hours"
    return (60.0, "minutes") if seconds >= 180 else (1.0, "seconds")


def _plot(measure: _Measure, times: list[float], marks: list[float], unit: str) -> Plot:
    ends, alone = measure.steps or ([], [])
    known = [v for v in (*measure.values, *measure.official, *alone) if v is not None]
    factor, prefix = (0.01, "") if measure.unit == "%" else scale_of(max(known))
    step = math.ceil(len(marks) / MOST_MARKS)
    shown = [i for i in range(len(marks)) if (len(marks) - 1 - i) % step == 0]
    with settings(measure.name):
        figure, axes = new_axes()
        if alone:
            scale = marks[-1] / ends[-1]
            edges = [0.0, *(end * scale for end in ends)]
            axes.stairs(scaled(alone, factor), edges, color=MUTED, linewidth=1.0, gid="intervals")
        _curve(axes, times, scaled(measure.values, factor), steps=measure.unit == "%")
        official = scaled(measure.official, factor)
        mark_points(axes, [marks[i] for i in shown], [official[i] for i in shown])
        name_last(axes, marks[-1], official[-1], _say(measure, measure.last))
        _frame(axes, marks[-1], max(known) / factor, f"{prefix}{measure.unit}", unit)
        if measure.unit == "%":
            _limit(axes)
        svg = save(figure, measure.name)
    return Plot(measure.title, _caption(measure, step), _describe(measure, times, unit), svg)


def _curve(axes: Axes, times: list[float], values: list[float], *, steps: bool) -> None:
    style = "steps-post" if steps else "default"
    axes.plot(times, values, color=CURVE, linewidth=1.4, drawstyle=style, solid_joinstyle="round")


def _frame(axes: Axes, end: float, most: float, unit: str, time_unit: str) -> None:
    axes.set_xlim(0.0, end)
    axes.set_ylim(0.0, 1.06 * most if most > 0.0 else 1.0)
    axes.set_xlabel(f"{time_unit} since the start", color=MUTED)
    axes.set_ylabel(unit, color=MUTED)
    dress(axes)


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


def _say(measure: _Measure, value: float) -> str:
    return percent(value) if measure.unit == "%" else si(value, measure.unit)


def _caption(measure: _Measure, step: int) -> str:
    said = []
    if measure.steps:
        which = "each interval" if measure.together == 1 else f"{measure.together} intervals"
        said.append(
            "Strong line: all operations since the start, over all time since then. Thin steps: "
            f"those of {which} alone."
        )
    if step > 1:
        said.append(f"One official point in {step} is marked.")
    return " ".join(said)


def _describe(measure: _Measure, times: list[float], unit: str) -> str:
    known = [(v, t) for t, v in zip(times, measure.values, strict=True) if v is not None]
    (least, low), (most, high) = min(known), max(known)
    return (
        f"{measure.title}, a line chart: lowest {_say(measure, least)} at {low:.3g} {unit}, "
        f"highest {_say(measure, most)} at {high:.3g} {unit}, "
        f"{_say(measure, measure.last)} at the end."
    )
