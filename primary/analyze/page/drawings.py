"""The sections of an analysis as drawings of a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from aiperf_hpc.primary.analyze.analysis import Analysis
from aiperf_hpc.primary.analyze.page.accuracy import draw_costs, draw_sensitivity
from aiperf_hpc.primary.analyze.page.roofline import roofline_plots
from aiperf_hpc.primary.analyze.page.scaling import scaling_plots
from aiperf_hpc.primary.analyze.sections.communication import Communication
from aiperf_hpc.primary.analyze.sections.cost import CostToAccuracy
from aiperf_hpc.primary.analyze.sections.thresholds import Sensitivities, by_rank
from aiperf_hpc.primary.analyze.training_log import Course
from aiperf_hpc.primary.report.plots.communication import Bar, breakdown_plot
from aiperf_hpc.primary.report.plots.figure import Plot
from aiperf_hpc.primary.report.plots.ops_over_time import OpsCurve, ops_over_time_plot
from aiperf_hpc.primary.report.plots.time_breakdown import PARTS, TimeBar, time_breakdown_plot

MOST_CURVES = 12
"""Entries that a drawing tells apart."""


def time_breakdown(analysis: Analysis) -> Iterator[Plot]:
    """Yield the parts of the time to solution of all entries that have them, a bar each."""
    bars = [
        TimeBar(each.entry, tuple(each.measures[part].mean for part in PARTS))
        for each in analysis.measures
        if all(part in each.measures for part in PARTS)
    ]
    if bars:
        yield time_breakdown_plot(bars)


def ops_over_time(analysis: Analysis) -> Iterator[Plot]:
    """Yield the score of all runs of ours over their time."""
    curves = [
        OpsCurve(entry.name, *_cumulative(log.course))
        for entry in analysis.entries
        for log in entry.logs
        if log.course is not None and any(log.course.operations)
    ]
    if curves:
        yield ops_over_time_plot(curves[:MOST_CURVES])


def _cumulative(course: Course) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the ends of a run's windows, and operations a second from its start until each."""
    ends = tuple(course.window_seconds * (place + 1) for place in range(len(course.operations)))
    done = accumulate(course.operations)
    return ends, tuple(total / end for total, end in zip(done, ends, strict=True))


def thresholds(found: Sensitivities) -> Iterator[Plot]:
    """Yield the time over thresholds of each contest of several entries."""
    for place, contest in enumerate(found.contests):
        plot = draw_sensitivity(contest, f"thresholds-{place}")
        if plot is not None and len(by_rank(contest)) > 1:
            yield plot


def cost(found: CostToAccuracy) -> Iterator[Plot]:
    """Yield time against cost of each contest of several entries."""
    for place, contest in enumerate(found.contests):
        plot = draw_costs(contest, f"cost-{place}")
        if plot is not None and len(contest.priced) > 1:
            yield plot


def communication(found: Communication) -> Iterator[Plot]:
    """Yield what training steps spend their time on."""
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


DRAWINGS: Mapping[str, Callable[[Any], Iterable[Plot]]] = {
    "scaling_study": scaling_plots,
    "threshold_sensitivity": thresholds,
    "cost_to_accuracy": cost,
    "communication": communication,
    "roofline": roofline_plots,
}
"""By the name of the section."""
