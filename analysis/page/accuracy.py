"""The drawings of time and cost to accuracy, of what the sections found."""

from __future__ import annotations

from aiperf_hpc.analysis.sections.cost import Costs
from aiperf_hpc.analysis.sections.thresholds import Sensitivity, by_rank
from aiperf_hpc.results.report.plots.figure import Plot
from aiperf_hpc.results.report.plots.time_to_accuracy import (
    CostPoint,
    TimeCurve,
    cost_plot,
    threshold_plot,
)


def draw_sensitivity(contest: Sensitivity, name: str) -> Plot | None:
    """Return time over thresholds; None where no entry reached any. ``name``: unique on a page."""
    subject = f"{contest.benchmark}, {contest.quality}"
    thresholds = [row.threshold for row in contest.thresholds]
    times: dict[str, list[float | None]] = {}
    overtakes: dict[str, list[int]] = {}
    for place, row in enumerate(contest.thresholds):
        for standing in row.standings:
            times.setdefault(standing.entry, []).append(standing.seconds)
        for change in row.changes:
            if change.by == "time":
                overtakes.setdefault(change.ahead, []).append(place)
    curves = [
        TimeCurve(entry, tuple(times[entry]), tuple(overtakes.get(entry, ())))
        for entry in by_rank(contest)
    ]
    return threshold_plot(subject, thresholds, contest.target, curves, name)


def draw_costs(contest: Costs, name: str) -> Plot | None:
    """Return cost over time; None where no entry has a cost. ``name``: unique on a page."""
    points = [
        CostPoint(paid.entry, paid.seconds, paid.cost, paid.on_front) for paid in contest.priced
    ]
    return cost_plot(contest.title, contest.currency, points, name)
