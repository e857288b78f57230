"""The plots of an analysis page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from aiperf_hpc.analysis.analysis import Analysis
from aiperf_hpc.analysis.metric import Aggregate
from aiperf_hpc.analysis.page.roofline import rooflines
from aiperf_hpc.analysis.page.scaling import scaling
from aiperf_hpc.analysis.page.time_to_accuracy import cost, thresholds
from aiperf_hpc.analysis.sections.communication import Communication
from aiperf_hpc.analysis.training_log import SearchTimeline
from aiperf_hpc.formatting import few, scale_of, si
from aiperf_hpc.results.report.plots.bars import Bar, breakdown_plot, stacked
from aiperf_hpc.results.report.plots.figure import Plot, drawing, line_style

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


PLOTS: Mapping[str, Callable[[Any], Iterable[Plot]]] = {
    "scaling_study": scaling,
    "threshold_sensitivity": thresholds,
    "cost_to_accuracy": cost,
    "communication": communication,
    "roofline": rooflines,
}
"""Plots by the name of the section."""
