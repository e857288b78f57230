"""The plots of an analysis page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

from aiperf_hpc.analysis.analysis import Analysis, EntryMetrics
from aiperf_hpc.analysis.metric import Aggregate
from aiperf_hpc.analysis.sections.communication import Communication
from aiperf_hpc.analysis.sections.cost import CostToAccuracy
from aiperf_hpc.analysis.sections.roofline import Ceilings, Rooflines, RunRoofline
from aiperf_hpc.analysis.sections.scaling_study import ScalingPoint, ScalingStudies
from aiperf_hpc.analysis.sections.thresholds import Sensitivities, by_rank
from aiperf_hpc.analysis.training_log import SearchTimeline, plural
from aiperf_hpc.results.report.plots.bars import Bar, TimeBar, breakdown_plot, time_breakdown_plot
from aiperf_hpc.results.report.plots.figure import Plot
from aiperf_hpc.results.report.plots.over_time import OpsCurve, ops_over_time_plot
from aiperf_hpc.results.report.plots.roofline import Panel, Point, Roof, roofline_plot
from aiperf_hpc.results.report.plots.scaling import Scale, scaling_study_plot
from aiperf_hpc.results.report.plots.time_to_accuracy import (
    CostPoint,
    TimeCurve,
    cost_plot,
    threshold_plot,
)

MOST_CURVES = 12
"""Maximum number of distinguishable entries in a plot."""


def time_breakdown(analysis: Analysis) -> Iterator[Plot]:
    """Yield a bar chart of the time to solution by its parts, for entries that have them."""
    bars = [bar for each in analysis.metrics if (bar := _time_bar(each)) is not None]
    if bars:
        yield time_breakdown_plot(bars)


def _time_bar(of: EntryMetrics) -> TimeBar | None:
    """Return an entry's bar, or None if its logs have no epochs.

    Staging outside the run is not part of the time to solution.
    """
    known = of.metrics
    if "compute" not in known or "extra" not in known:
        return None
    compute, evaluation = known["compute"], known.get("evaluation")
    separate = evaluation.mean if evaluation and evaluation.scored == compute.scored else None
    return TimeBar(
        of.entry,
        staging=_staging_inside(known.get("staging"), known.get("staging_outside")),
        compute=compute.mean - (separate or 0.0),
        evaluation=separate,
        extra=known["extra"].mean,
    )


def _staging_inside(staging: Aggregate | None, outside: Aggregate | None) -> float | None:
    """Return the mean minutes of staging in the run; all staging if no training has any outside."""
    if staging is None:
        return None
    without = 0.0 if outside is None else outside.mean * len(outside.scored) / len(staging.scored)
    return staging.mean - without


def ops_over_time(analysis: Analysis) -> Iterator[Plot]:
    """Yield the score over time of AIPerf runs, up to a maximum number of runs."""
    curves = [
        OpsCurve(entry.name, *_cumulative(log.timeline))
        for entry in analysis.entries
        for log in entry.logs
        if log.timeline is not None and any(log.timeline.operations)
    ]
    if not curves:
        return
    plot = ops_over_time_plot(curves[:MOST_CURVES])
    if len(curves) > MOST_CURVES:
        left_out = f"The first {MOST_CURVES} of {len(curves)} runs; the JSON document has all."
        plot = replace(plot, caption=f"{plot.caption} {left_out}")
    yield plot


def _cumulative(course: SearchTimeline) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the ends of a run's windows, and the operations per second from its start to each."""
    ends = tuple(course.window_seconds * (place + 1) for place in range(len(course.operations)))
    done = accumulate(course.operations)
    return ends, tuple(total / end for total, end in zip(done, ends, strict=True))


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
        points = [CostPoint(p.entry, p.seconds, p.cost, p.on_front) for p in contest.priced]
        plot = cost_plot(contest.title, contest.currency, points, f"cost-{place}")
        if plot is not None and len(points) > 1:
            yield plot


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


def rooflines(found: Rooflines) -> Iterator[Plot]:
    """Yield a roofline plot of each run whose machine's peaks are known."""
    for place, run in enumerate(found.runs):
        if run.ceilings is None:
            continue
        roofs = [Roof(name, rate) for name, rate in run.ceilings.compute.items()]
        plot = roofline_plot(
            run.entry, roofs, list(_panels(run, run.ceilings)), f"roofline-{place}"
        )
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


def scaling(studies: ScalingStudies) -> list[Plot]:
    """Yield the four panels of each scaling study."""
    return [
        scaling_study_plot(
            study.subject,
            [_scale(point) for point in study.points],
            f"study{place}",
            plural(study.device),
        )
        for place, study in enumerate(studies.studies)
    ]


def _scale(point: ScalingPoint) -> Scale:
    minutes, epochs = point.minutes, point.epochs
    return Scale(
        accelerators=point.accelerators,
        minutes=minutes.mean if minutes else None,
        minutes_deviation=minutes.deviation if minutes else None,
        epochs=epochs.mean if epochs else None,
        epochs_deviation=epochs.deviation if epochs else None,
        throughput=point.throughput.mean,
        throughput_deviation=point.throughput.deviation,
        efficiency=point.efficiency,
        time_efficiency=point.time_efficiency,
    )


PLOTS: Mapping[str, Callable[[Any], Iterable[Plot]]] = {
    "scaling_study": scaling,
    "threshold_sensitivity": thresholds,
    "cost_to_accuracy": cost,
    "communication": communication,
    "roofline": rooflines,
}
"""Plots by the name of the section."""
