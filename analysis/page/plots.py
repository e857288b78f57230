"""The plots of an analysis page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from aiperf_hpc.analysis.analysis import Analysis
from aiperf_hpc.analysis.metric import Aggregate
from aiperf_hpc.analysis.page.time_to_accuracy import cost, thresholds
from aiperf_hpc.analysis.sections.communication import Communication
from aiperf_hpc.analysis.sections.roofline import Ceilings, Rooflines, RunRoofline
from aiperf_hpc.analysis.sections.scaling_study import (
    ScalingPoint,
    ScalingStudies,
    ScalingStudy,
    Spread,
)
from aiperf_hpc.analysis.training_log import SearchTimeline, plural
from aiperf_hpc.formatting import few, percent, scale_of, si
from aiperf_hpc.results.report.plots.bars import Bar, breakdown_plot, stacked
from aiperf_hpc.results.report.plots.figure import (
    CURVE,
    HEIGHT,
    IDEAL,
    INK,
    MOST_NUMBERS,
    MUTED,
    Plot,
    drawing,
    line_style,
    logarithmic,
    mark_points,
    name_point,
)

LETTERS = 40
"""Maximum length of a name."""
RUNS_HEIGHT = 3.4
MOST_CURVES = 12
"""Maximum number of distinguishable entries in a plot."""
_PARTS = {"staging": "#d98324", "compute": "#0b5c99", "evaluation": "#4b7f1f", "extra": "#8b9299"}
"""Colors of the parts of the time to solution."""
_Minutes = Mapping[str, float | None]
"""Minutes of each part; None if an entry's logs do not contain it."""


def time_breakdown(analysis: Analysis) -> Iterator[Plot]:
    """Yield a bar chart of the time to solution by its parts, for entries that have them.

    Bars are fractions, with the time itself next to each: absolute times of entries of one round
    would differ by a factor of a hundred.
    """
    found = {each.entry: _minutes(each.metrics) for each in analysis.metrics}
    entries = {entry: minutes for entry, minutes in found.items() if minutes is not None}
    if not entries:
        return
    known = {
        entry: {part: 60.0 * (minutes[part] or 0.0) for part in _PARTS}
        for entry, minutes in entries.items()
    }
    bars = [Bar(_short(entry), seconds) for entry, seconds in known.items()]
    wholes = [f"{sum(m or 0.0 for m in each.values()):,.2f} min" for each in entries.values()]
    canvas = stacked(bars, _PARTS, wholes, "breakdown")
    words = "; ".join(f"{entry}: {_in_words(minutes)}" for entry, minutes in entries.items())
    title = "Parts of the time to solution"
    yield canvas.plot(title, _breakdown_caption(entries), f"A bar chart. {words}.")


def _minutes(known: Mapping[str, Aggregate]) -> _Minutes | None:
    """Return an entry's minutes, or None if its logs have no epochs.

    Staging outside the run is not part of the time to solution. Compute includes evaluations that
    are not known separately.
    """
    if "compute" not in known or "extra" not in known:
        return None
    compute, evaluation = known["compute"], known.get("evaluation")
    separate = evaluation.mean if evaluation and evaluation.scored == compute.scored else None
    return {
        "staging": _staging_inside(known.get("staging"), known.get("staging_outside")),
        "compute": compute.mean - (separate or 0.0),
        "evaluation": separate,
        "extra": known["extra"].mean,
    }


def _in_words(minutes: _Minutes) -> str:
    return ", ".join(f"{part} {m:.2f} min" for part, m in minutes.items() if m is not None)


def _breakdown_caption(entries: Mapping[str, _Minutes]) -> str:
    said = ["Percentages of each entry's time to solution: means over its scored training runs."]
    said.append("Compute: epochs, without evaluations; extra: neither of these nor staging.")
    for what, part in (
        ("No staging in the logs of", "staging"),
        ("Compute contains the evaluations of", "evaluation"),
    ):
        if names := [entry for entry, minutes in entries.items() if minutes[part] is None]:
            said.append(f"{what} {few(names)}.")
    return " ".join(said)


def _short(name: str) -> str:
    return name if len(name) <= LETTERS else f"{name[:25]}…{name[-(LETTERS - 26) :]}"


def _staging_inside(staging: Aggregate | None, outside: Aggregate | None) -> float | None:
    """Return the mean minutes of staging in the run; all staging if no training has any outside."""
    if staging is None:
        return None
    without = 0.0 if outside is None else outside.mean * len(outside.scored) / len(staging.scored)
    return staging.mean - without


def ops_over_time(analysis: Analysis) -> Iterator[Plot]:
    """Yield the score over time of AIPerf runs, up to a maximum number of runs."""
    curves = [
        (entry.name, _cumulative(log.timeline))
        for entry in analysis.entries
        for log in entry.logs
        if log.timeline is not None and any(log.timeline.operations)
    ]
    if not curves:
        return
    shown = curves[:MOST_CURVES]
    factor, prefix = scale_of(max(ops for _, curve in shown for _, ops in curve))
    with drawing("ops", RUNS_HEIGHT) as canvas:
        axes = canvas.axes((0.062, 0.15, 0.6, 0.8))
        for number, (name, curve) in enumerate(shown):
            minutes = [seconds / 60.0 for seconds, _ in curve]
            values = [ops / factor for _, ops in curve]
            axes.plot(minutes, values, label=name, **line_style(number))
        axes.set(xlabel="minutes since the run's start", ylim=(0.0, None), ylabel=f"{prefix}OPS")
        axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), borderaxespad=0.0)
    words = "; ".join(f"{name} ends at {si(curve[-1][1], 'OPS')}" for name, curve in shown)
    caption = "Operations of all samples executed so far, divided by the elapsed time."
    if len(curves) > MOST_CURVES:
        caption += f" The first {MOST_CURVES} of {len(curves)} runs; the JSON document has all."
    yield canvas.plot("Score over time", caption, f"A line chart. {words}.")


def _cumulative(course: SearchTimeline) -> list[tuple[float, float]]:
    """Return the ends of a run's windows, and the operations per second from its start to each."""
    totals = enumerate(accumulate(course.operations), 1)
    ends = [(course.window_seconds * place, total) for place, total in totals]
    return [(end, total / end) for end, total in ends]


def communication(found: Communication) -> Iterator[Plot]:
    """Yield the time breakdown of training steps."""
    bars = [
        Bar(
            f"{b.entry}, {b.ranks} ranks",
            {"compute": b.compute, **{str(p): s for p, s in b.parts.items() if s is not None}},
        )
        for b in found.breakdowns
        if b.step > 0.0
    ]
    if bars:
        yield breakdown_plot("A training step", bars, "communication")


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


ROOM = 3.0
"""Factor by which an axis extends beyond its data."""
LINE = 13.0
"""Height of a line of text in points."""
MARKS = {"fp32": "o", "bf16": "s", "fp16": "^"}
MARK_WORDS = {"fp32": "ring", "bf16": "square", "fp16": "triangle"}
NAMES = {"memory": "operations/B of memory", "network": "operations/B reduced",
         "storage": "operations/B read"}  # fmt: skip


class Point(NamedTuple):
    """Achieved performance of one network."""

    name: str
    intensity: float
    """Operations per byte."""
    most_intensity: float
    """Operations per byte if all layers that can be fused are fused; otherwise ``intensity``."""
    rate: float
    """Operations per second."""
    precision: str


class Panel(NamedTuple):
    """Panel of one kind of traffic."""

    kind: str
    """``memory``, ``network`` or ``storage``."""
    bandwidth: float
    """Bytes per second."""
    points: Sequence[Point]


def rooflines(found: Rooflines) -> Iterator[Plot]:
    """Yield a roofline plot of each run whose machine's peaks are known."""
    for place, run in enumerate(found.runs):
        if run.ceilings is None:
            continue
        panels, peaks = list(_panels(run, run.ceilings)), run.ceilings.compute
        plot = roofline_plot(run.entry, peaks, panels, f"roofline-{place}")
        if plot is not None:
            yield plot


def _panels(run: RunRoofline, ceilings: Ceilings) -> Iterator[Panel]:
    """Yield a panel for each known bandwidth, with the networks that move such bytes."""
    for kind, bandwidth in ceilings.bandwidths.items():
        points = [
            Point(each.graph[:8], low, high, each.achieved, each.precision)
            for each in run.architectures
            for low, high in (each.intensities(kind),)
            if low is not None and high is not None
        ]
        yield Panel(kind, bandwidth, points)


def roofline_plot(
    title: str, roofs: Mapping[str, float], panels: Sequence[Panel], name: str
) -> Plot | None:
    """Return a logarithmic panel for each kind of traffic with points, or None if there is none.

    Args:
        title: name of the measured run.
        roofs: compute peaks by precision, operations per second.
        panels: bandwidths, each with the achieved performance.
        name: unique name among a page's drawings.
    """
    drawn = [panel for panel in panels if panel.points]
    if not drawn or not roofs:
        return None
    rates = [*roofs.values()]
    rates += [point.rate for panel in drawn for point in panel.points]
    with drawing(name, 1.9 * HEIGHT) as canvas:
        every = canvas.panels(1, len(drawn), shared="y")
        for axes, panel in zip(every, drawn, strict=True):
            _draw(axes, panel, roofs, rates)
        every[0].set_ylabel("OPS")
        canvas.figure.tight_layout(w_pad=2.0)
        for axes, panel in zip(every, drawn, strict=True):
            _name_roofs(axes, roofs)
            _name_slope(axes, panel, roofs)
    return canvas.plot(f"Roofline of {title}", _caption(drawn), _words(roofs, drawn))


def _draw(axes: Axes, panel: Panel, roofs: Mapping[str, float], rates: Sequence[float]) -> None:
    """Draw lines and points, without labels, which need the final size of the panel."""
    axes.grid(axis="x")
    ridges = [rate / panel.bandwidth for rate in roofs.values()]
    found = [p.intensity for p in panel.points] + [p.most_intensity for p in panel.points]
    logarithmic(axes, "x", [min(*found, *ridges) / ROOM, max(*found, *ridges) * ROOM])
    logarithmic(axes, "y", [min(rates) / ROOM, max(rates) * ROOM])
    left, right = axes.get_xlim()
    top, slope = max(roofs.values()), panel.bandwidth
    axes.plot([left, top / slope], [left * slope, top], color=INK, label=f"{panel.kind} bandwidth")
    for name, rate in roofs.items():
        axes.plot([rate / slope, right], [rate] * 2, color=INK, label=f"{name} peak")
    for point in panel.points:
        _mark(axes, point)
    axes.set_xlabel(NAMES[panel.kind])


def _name_roofs(axes: Axes, roofs: Mapping[str, float]) -> None:
    """Label the peaks above their lines, with one label for lines that are close together."""
    groups: list[list[str]] = []
    for name in sorted(roofs, key=lambda name: -roofs[name]):
        if groups and _height(axes, roofs[groups[-1][0]]) - _height(axes, roofs[name]) < LINE:
            groups[-1].append(name)
        else:
            groups.append([name])
    for group in groups:
        text = ", ".join(f"{name} {si(roofs[name], 'OPS')}" for name in group)
        place = axes.get_xlim()[1], roofs[group[0]]
        name_point(axes, text, place, (0, 3), ha="right", va="bottom", color=MUTED)


def _height(axes: Axes, rate: float) -> float:
    """Return the vertical position of a rate in points."""
    return float(axes.transData.transform((axes.get_xlim()[0], rate))[1])


def _name_slope(axes: Axes, panel: Panel, roofs: Mapping[str, float]) -> None:
    """Label the bandwidth along its line, below the lowest peak."""
    begin = max(axes.get_xlim()[0], axes.get_ylim()[0] / panel.bandwidth)
    end = min(roofs.values()) / panel.bandwidth
    places = [(x, x * panel.bandwidth) for x in (begin, end)]
    (x0, y0), (x1, y1) = axes.transData.transform(places)
    middle = math.sqrt(begin * end)
    angle = math.degrees(math.atan2(y1 - y0, x1 - x0))
    along = {"rotation": angle, "rotation_mode": "anchor", "ha": "center", "va": "bottom"}
    text, place = f"{panel.kind} {si(panel.bandwidth, 'B/s')}", (middle, middle * panel.bandwidth)
    name_point(axes, text, place, (-2, 2), **along, color=MUTED)


def _mark(axes: Axes, point: Point) -> None:
    """Draw a marker for unfused layers, with a line to the intensity of fused layers."""
    if point.most_intensity > point.intensity:
        ends = [point.intensity, point.most_intensity]
        axes.plot(ends, [point.rate] * 2, color=CURVE, linewidth=1.2)
    mark = MARKS.get(point.precision, "o")
    mark_points(axes, [point.intensity], [point.rate], marker=mark, markersize=4.6,
                label=point.name)  # fmt: skip


def _caption(panels: Sequence[Panel]) -> str:
    points = [point for panel in panels for point in panel.points]
    precisions = [name for name in MARKS if any(p.precision == name for p in points)]
    marks = ", ".join(f"{MARK_WORDS[name]}: {name}" for name in precisions)
    words = f"A marker is a network ({marks}), with the performance of one worker in training"
    if any(point.most_intensity > point.intensity for point in points):
        words += "; its line ends at the intensity with fused element-wise layers"
    return f"{words}. Markers are below the lines unless caches reduce the traffic."


def _words(roofs: Mapping[str, float], panels: Sequence[Panel]) -> str:
    peaks = ", ".join(f"{name} {si(rate, 'OPS')}" for name, rate in roofs.items())
    parts = [f"Operations per second over operations per byte, logarithmic; peaks: {peaks}."]
    for panel in panels:
        best = max(panel.points, key=lambda point: point.rate)
        share = f", {percent(best.rate / roofs[best.precision], 0)} of its peak" if (
            best.precision in roofs
        ) else ""  # fmt: skip
        parts.append(
            f"{panel.kind.capitalize()} of {si(panel.bandwidth, 'B/s')}: {len(panel.points)} "
            f"networks, the fastest at {best.intensity:.3g} operations per byte with "
            f"{si(best.rate, 'OPS')}{share}."
        )
    return " ".join(parts)


PLOTS: Mapping[str, Callable[[Any], Iterable[Plot]]] = {
    "scaling_study": scaling,
    "threshold_sensitivity": thresholds,
    "cost_to_accuracy": cost,
    "communication": communication,
    "roofline": rooflines,
}
"""Plots by the name of the section."""
