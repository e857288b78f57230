"""Plots of scaling studies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes

from aiperf_hpc.analysis.sections.scaling_study import (
    ScalingPoint,
    ScalingStudies,
    ScalingStudy,
    Spread,
)
from aiperf_hpc.analysis.training_log import plural
from aiperf_hpc.formatting import percent
from aiperf_hpc.results.report.plots.figure import (
    CURVE,
    IDEAL,
    INK,
    MOST_NUMBERS,
    MUTED,
    Plot,
    drawing,
    logarithmic,
    mark_points,
)

STUDY_HEIGHT = 5.4


def scaling(studies: ScalingStudies) -> Iterator[Plot]:
    """Yield the four panels of each scaling study."""
    for place, study in enumerate(studies.studies):
        yield scaling_study_plot(study, f"study{place}")


def scaling_study_plot(study: ScalingStudy, name: str) -> Plot:
    """Draw the entries of one benchmark in ascending order of accelerators or ranks.

    Ideal scaling is in proportion to the smallest entry: time falls and throughput grows with the
    accelerators, epochs and efficiency are constant. ``name`` is unique among a page's drawings.
    """
    points, subject, devices = study.points, study.subject, plural(study.device)
    with drawing(name, STUDY_HEIGHT) as canvas:
        panels = canvas.panels(2, 2, shared="x")
        _panel(panels[0], "time to solution, min", points, "minutes", -1)
        _panel(panels[1], "epochs to converge", points, "epochs", 0)
        _panel(panels[2], "training samples/s", points, "throughput", 1)
        _efficiency(panels[3], points)
        for axes in panels:
            _number(axes, [point.accelerators for point in points])
        for axes in panels[2:]:
            axes.set_xlabel(devices)
        canvas.figure.subplots_adjust(0.062, 0.095, 0.985, 0.93, hspace=0.3)
    base, most = points[0], points[-1]
    words = (
        f"Scaling of {subject}, four charts over {devices} with logarithmic axes: from "
        f"{base.accelerators:,} to {most.accelerators:,} time to solution goes from "
        f"{_text(base.minutes)} to {_text(most.minutes)} min, epochs from {_text(base.epochs)} to "
        f"{_text(most.epochs)}, throughput from {_text(base.throughput)} to "
        f"{_text(most.throughput)} samples/s; efficiency is {percent(most.efficiency, 1)}."
    )
    caption = (
        "Dashed: ideal, from the smallest entry. Bars: one standard deviation over training runs."
    )
    return canvas.plot(f"Scaling of {subject}", caption, words)


def _panel(
    axes: Axes, title: str, points: Sequence[ScalingPoint], metric: str, growth: int
) -> None:
    """Draw a metric with the line of ideal scaling from the first entry that has the metric.

    Args:
        axes: axes of the panel.
        title: title of the panel.
        points: all entries.
        metric: name of the entries' field.
        growth: exponent of the number of accelerators for ideal scaling.
    """
    spreads = ((point.accelerators, getattr(point, metric)) for point in points)
    known = [(n, each.mean, each.deviation or 0.0) for n, each in spreads if each is not None]
    _title(axes, f"{title} (log scale)" if known else title)
    if not known:
        axes.annotate(
            "no training run converged", (0.5, 0.5), xycoords="axes fraction", ha="center"
        )
        return
    places, values, deviations = zip(*known, strict=True)
    ends = [float(points[0].accelerators), float(points[-1].accelerators)]
    line = [values[0] * (n / places[0]) ** growth for n in ends]
    axes.plot(ends, line, color=MUTED, linewidth=1.0, linestyle=IDEAL, zorder=1)
    axes.errorbar(places, values, deviations, fmt="none", ecolor=CURVE, elinewidth=1.2, capsize=3,
                  label="one standard deviation")  # fmt: skip
    mark_points(axes, places, values, label="mean")
    ends_of_bars = [v + sign * d for _, v, d in known for sign in (-1.0, 1.0)]
    logarithmic(axes, "y", [*line, *ends_of_bars])


def _efficiency(axes: Axes, points: Sequence[ScalingPoint]) -> None:
    """Draw the efficiency of throughput as rings, and of the time to solution as squares."""
    _title(axes, "efficiency, %  (rings: throughput, squares: time to solution)")
    axes.axhline(100.0, color=MUTED, linewidth=1.0, linestyle=IDEAL, zorder=1)
    timed = [(s.accelerators, 100.0 * s.time_efficiency) for s in points if s.time_efficiency]
    squares = {"marker": "s", "markersize": 4.5, "markerfacecolor": INK, "markeredgecolor": INK,
               "label": "time to solution"}  # fmt: skip
    mark_points(axes, [n for n, _ in timed], [value for _, value in timed], **squares, zorder=2)
    values = [100.0 * point.efficiency for point in points]
    places = [float(point.accelerators) for point in points]
    mark_points(axes, places, values, label="throughput")
    axes.set_ylim(0.0, 1.1 * max(100.0, *values, *(value for _, value in timed)))


def _title(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=9.0, color=INK)


def _number(axes: Axes, accelerators: Sequence[int]) -> None:
    """Make the horizontal axis logarithmic, with the entries' numbers as far as they fit."""
    logarithmic(axes, "x", [float(n) for n in accelerators])
    apart = max((max(accelerators) / min(accelerators)) ** (1 / MOST_NUMBERS), 1.02)
    shown: list[int] = []
    for n in sorted(set(accelerators)):
        if not shown or n >= shown[-1] * apart:
            shown.append(n)
    axes.xaxis.set_ticks(shown, [f"{n:,}" for n in shown])


def _text(spread: Spread | None) -> str:
    return "an unknown number" if spread is None else f"{spread.mean:,.4g}"
