"""The sections of an analysis as drawings of a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

from aiperf_hpc.analysis.analysis import Analysis, EntryMeasures
from aiperf_hpc.analysis.measured import Aggregate
from aiperf_hpc.analysis.page.accuracy import draw_costs, draw_sensitivity
from aiperf_hpc.analysis.page.roofline import roofline_plots
from aiperf_hpc.analysis.page.scaling import scaling_plots
from aiperf_hpc.analysis.sections.communication import Communication
from aiperf_hpc.analysis.sections.cost import CostToAccuracy
from aiperf_hpc.analysis.sections.thresholds import Sensitivities, by_rank
from aiperf_hpc.analysis.training_log import Course
from aiperf_hpc.results.report.plots.communication import Bar, breakdown_plot
from aiperf_hpc.results.report.plots.figure import Plot
from aiperf_hpc.results.report.plots.ops_over_time import OpsCurve, ops_over_time_plot
from aiperf_hpc.results.report.plots.time_breakdown import TimeBar, time_breakdown_plot

MOST_CURVES = 12
"""Entries that a drawing tells apart."""


def time_breakdown(analysis: Analysis) -> Iterator[Plot]:
    """Yield the parts of the time to solution of all entries that tell them, a bar each."""
    bars = [bar for each in analysis.measures if (bar := _time_bar(each)) is not None]
    if bars:
        yield time_breakdown_plot(bars)


def _time_bar(of: EntryMeasures) -> TimeBar | None:
    """Return an entry's bar; None where its logs have no epochs.

    Staging outside of the run is no part of the time to solution.
    """
    known = of.measures
    if "compute" not in known or "extra" not in known:
        return None
    compute, evaluation = known["compute"], known.get("evaluation")
    told = evaluation.mean if evaluation and evaluation.kept == compute.kept else None
    return TimeBar(
        of.entry,
        staging=_staging_inside(known.get("staging"), known.get("staging_outside")),
        compute=compute.mean - (told or 0.0),
        evaluation=told,
        extra=known["extra"].mean,
    )


def _staging_inside(staging: Aggregate | None, outside: Aggregate | None) -> float | None:
    """Return the mean minutes of staging in the run; what no training has outside is within it."""
    if staging is None:
        return None
    without = 0.0 if outside is None else outside.mean * len(outside.kept) / len(staging.kept)
    return staging.mean - without


def ops_over_time(analysis: Analysis) -> Iterator[Plot]:
    """Yield the score of all runs of ours over their time, of many the first ones."""
    curves = [
        OpsCurve(entry.name, *_cumulative(log.course))
        for entry in analysis.entries
        for log in entry.logs
        if log.course is not None and any(log.course.operations)
    ]
    if not curves:
        return
    plot = ops_over_time_plot(curves[:MOST_CURVES])
    if len(curves) > MOST_CURVES:
        shown = f"The first {MOST_CURVES} of {len(curves)} runs; the JSON document has all."
        plot = replace(plot, caption=f"{plot.caption} {shown}")
    yield plot


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
