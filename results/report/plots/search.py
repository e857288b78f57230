"""What trials reached: learning curves, effects of hyperparameters, expectations of the search."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from aiperf_hpc.errors import UsageError
from aiperf_hpc.formatting import quality
from aiperf_hpc.objective import Measure
from aiperf_hpc.results.report.parts import TrialReport
from aiperf_hpc.results.report.plots.figure import (
    CURVE,
    HEIGHT,
    INK,
    MUTED,
    Plot,
    drawing,
    evenly,
    mark_points,
    name_last,
    of_its_own,
    scaled,
)
from aiperf_hpc.results.report.search_replay import CandidateOutcome
from aiperf_hpc.trial import Hyperparameters, RoundPhase

TALL = (0.062, 0.15, 0.855, 0.8)
"""The place of axes in a drawing that is higher than others."""
MOST_CURVES = 60
"""Trials that are drawn; more lines could not be told apart."""


def learning_plot(trials: Sequence[TrialReport], best: str | None, measure: Measure) -> Plot | None:
    """Return the curves of trials; None where nothing was evaluated.

    Args:
        trials: all trials; of many, some are drawn, evenly taken.
        best: the trial whose curve stands out.
        measure: the run's measure of quality.
    """
    evaluated = [trial for trial in trials if trial.qualities]
    if not evaluated:
        return None
    shown = [evaluated[place] for place in evenly(len(evaluated), MOST_CURVES)]
    chosen = next((trial for trial in evaluated if trial.id == best), None)
    factor = 100.0 if measure.error is not None else 1.0
    with drawing("learning", 1.35 * HEIGHT) as canvas:
        axes = canvas.axes(TALL)
        for trial in shown:
            if trial is not chosen:
                axes.plot(*_curve(trial, factor), color=MUTED, linewidth=0.9, alpha=0.55,
                          marker=_marker(trial), markersize=3)  # fmt: skip
        if chosen is not None:
            epochs, values = _curve(chosen, factor)
            axes.plot(epochs, values, color=CURVE, linewidth=2.0, marker=_marker(chosen))
            name_last(axes, epochs[-1], values[-1], chosen.id)
        drawn = [*shown, *([chosen] if chosen is not None else [])]
        axes.set_ylim(*_limits([factor * value for trial in drawn for value in trial.qualities]))
        axes.set_xlim(0.0, max(trial.first_epoch + len(trial.qualities) for trial in drawn))
        label = f"{measure.label}, %" if factor > 1.0 else measure.label
        axes.set(xlabel="epoch of the trial", ylabel=label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    caption = _caption(drawn, evaluated, chosen)
    return Plot("Learning curves", caption, _words(drawn, measure), canvas.svg)


def _curve(trial: TrialReport, factor: float) -> tuple[list[int], list[float]]:
    epochs = [trial.first_epoch + place for place in range(len(trial.qualities))]
    return epochs, [factor * value for value in trial.qualities]


def _marker(trial: TrialReport) -> str:
    """Return a mark where a trial has one point, which is no line."""
    return "o" if len(trial.qualities) == 1 else ""


def _limits(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = max(0.08 * (high - low), 1e-3 * max(abs(low), abs(high)), 1e-9)
    return low - room, high + room


def _caption(
    drawn: Sequence[TrialReport], evaluated: Sequence[TrialReport], best: TrialReport | None
) -> str:
    number = len({trial.id for trial in drawn})
    said = "One line per trial, with a point after each evaluated epoch."
    if best is not None:
        said += f" The strong one is {best.id}, the best."
    if number < len(evaluated):
        said += f" {number} of {len(evaluated):,} trials, evenly sampled; report.json has all."
    return said


def _words(drawn: Sequence[TrialReport], measure: Measure) -> str:
    reached = sorted(
        (trial.best_quality for trial in drawn if trial.best_quality is not None),
        key=measure.objective_value,
    )
    worst, best = (quality(value, measure.name) for value in (reached[0], reached[-1]))
    return f"A line chart of {measure.label} by epoch: trials reached from {worst} to {best}."


MOST_PANELS, MOST_POINTS, MOST_VALUES = 4, 150, 10
"""Hyperparameters that are drawn, points of each, and values above which they are a scale."""
NOT_CHOSEN = "as grown"
"""The kernel size of a trial whose network was trained as it was grown."""


def hyperparameters_plot(trials: Sequence[TrialReport], measure: Measure) -> Plot | None:
    """Return the effects of hyperparameters; None where trials of their optimisation do not vary.

    A panel for each that took several values: what every trial reached with it.
    """
    tuned = [t for t in trials if t.phase == RoundPhase.HPO and t.best_quality is not None]
    names = [name for name in Hyperparameters.model_fields if len(set(_values(tuned, name))) > 1]
    if not names:
        return None
    names = names[:MOST_PANELS]
    factor = 100.0 if measure.error is not None else 1.0
    shown = [tuned[place] for place in evenly(len(tuned), MOST_POINTS)]
    reached = [factor * (trial.best_quality or 0.0) for trial in shown]
    with drawing("hyperparameters", 1.2 * HEIGHT) as canvas:
        for place, name in enumerate(names):
            width = 0.9 / len(names)
            axes = canvas.axes((0.062 + place * width, 0.19, width - 0.055, 0.74))
            _panel(axes, name, _values(shown, name), reached)
            if place == 0:
                label = f"best {measure.label}"
                axes.set_ylabel(f"{label}, %" if factor > 1.0 else label)
    caption = (
        "A ring is a trial of hyperparameter optimisation, by the best that it reached; bars are "
        "medians. Trials differ in more than one of them, and in their networks."
    )
    if len(shown) < len(tuned):
        caption += f" {len(shown)} of {len(tuned):,} trials, evenly sampled."
    words = ", ".join(_name_text(name) for name in names)
    description = f"A scatter plot by {words}."
    return Plot("Effects of hyperparameters", caption, description, canvas.svg)


def _values(trials: Sequence[TrialReport], name: str) -> list[float | str]:
    found = (getattr(trial.hyperparameters, name) for trial in trials)
    return [
        value if isinstance(value, int | float) else NOT_CHOSEN if value is None else str(value)
        for value in found
    ]


def _panel(axes: Axes, name: str, values: Sequence[float | str], reached: Sequence[float]) -> None:
    known = sorted(set(values), key=lambda value: (isinstance(value, str), value))
    numbers = [value for value in values if not isinstance(value, str)]
    scale = len(known) > MOST_VALUES and len(numbers) == len(values)
    places = numbers if scale else [known.index(value) for value in values]
    mark_points(axes, places, reached, markerfacecolor="none", markeredgewidth=1.0)
    if not scale:
        for place, value in enumerate(known):
            own = [each for each, of in zip(reached, values, strict=True) if of == value]
            axes.hlines(statistics.median(own), place - 0.3, place + 0.3, color=INK, linewidth=2)
        axes.set_xlim(-0.6, len(known) - 0.4)
    axes.set_ylim(*_limits(reached))
    if scale:
        axes.xaxis.set_major_locator(MaxNLocator(4))
    else:
        axes.set_xticks(range(len(known)), [_value_text(value) for value in known])
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel(_name_text(name))


def _value_text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _name_text(name: str) -> str:
    return name.replace("_", " ")


MOST_CANDIDATES = 150
"""Candidates of which the plot shows what was expected."""


def prediction_plot(candidates: Sequence[CandidateOutcome]) -> Plot | None:
    """Return what was expected of candidates beside what came of them; None without any."""
    judged = [c for c in candidates if c.mean is not None and c.objective is not None]
    if not judged:
        return None
    shown = [judged[i] for i in evenly(len(judged), MOST_CANDIDATES)]
    expected = [100.0 * (c.mean or 0.0) for c in shown]
    spread = [100.0 * (c.deviation or 0.0) for c in shown]
    reached = [100.0 * (c.reached or 0.0) for c in shown]
    predicted = scaled([c.predicted for c in shown], 0.01)
    with drawing("prediction", 1.35 * HEIGHT) as canvas:
        axes = canvas.axes(TALL)
        numbers = [i + 1 for i in range(len(shown))]
        axes.errorbar(
            numbers, expected, yerr=spread, color=MUTED, linestyle="none", marker="_",
            markersize=7, elinewidth=1.0,
        )  # fmt: skip
        diamonds = {"marker": "D", "markersize": 6.5, "markerfacecolor": "none"}
        mark_points(axes, numbers, predicted, **diamonds, markeredgecolor=INK, gid="predicted")
        mark_points(axes, numbers, reached, markerfacecolor=CURVE, gid="reached")
        axes.plot(numbers, list(accumulate(reached, max)), color=CURVE, linewidth=1.0, alpha=0.5)
        axes.set_ylim(*_accuracies(expected, spread, [*reached, *predicted]))
        axes.set(xlim=(0.0, len(shown) + 1.0), xlabel="candidates in order of time")
        axes.set_ylabel("accuracy, %")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    words = (
        f"Expected and reached accuracy of {len(shown)} candidates: expected from "
        f"{min(expected):.3g}% to {max(expected):.3g}%, reached from {min(reached):.3g}% to "
        f"{max(reached):.3g}%."
    )
    caption = (
        "Bars: expected when it was chosen, with one deviation. Dots: reached. Diamonds: predicted "
        "of longer training, which the search uses. Line: the best reached so far."
    )
    if len(shown) < len(judged):
        caption += f" {len(shown)} of {len(judged):,} candidates, evenly sampled."
    return Plot("Expected, reached and predicted", caption, words, canvas.svg)


def write_prediction_plot(candidates: Sequence[CandidateOutcome], path: Path) -> None:
    """Draw ``prediction_plot`` into an SVG file of its own.

    Raises:
        UsageError: the file's name does not end in .svg, or of no candidate was something
            expected and an objective value told.
    """
    if path.suffix != ".svg":
        raise UsageError(f"--plot {path}: the drawing is SVG; name a file that ends in .svg")
    plot = prediction_plot(candidates)
    if plot is None:
        raise UsageError("no candidate has both an expected and a known objective yet: no plot")
    path.write_text(of_its_own(plot.svg), "utf-8")


def _accuracies(
    expected: Sequence[float], spread: Sequence[float], others: Sequence[float]
) -> tuple[float, float]:
    """Return the limits, in percent, within which everything is seen.

    Deviations are followed no further than from 0 to 100; what is more says nothing.
    """
    bars = [(e, max(e - s, 0.0), min(e + s, 100.0)) for e, s in zip(expected, spread, strict=True)]
    known = [v for v in (*others, *(end for bar in bars for end in bar)) if not math.isnan(v)]
    low, high = min(known), max(known)
    room = max(0.08 * (high - low), 0.05)
    return low - room, high + room
