"""Plots of trials: learning curves, hyperparameters, and predictions of the search."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from aiperf_hpc.errors import UsageError
from aiperf_hpc.formatting import percent, quality
from aiperf_hpc.objective import QualityMetric
from aiperf_hpc.results.report.importance import HyperparameterImportance, setting_of, varying
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
    name_point,
    of_its_own,
    scaled,
)
from aiperf_hpc.results.report.search_replay import CandidateOutcome
from aiperf_hpc.trial import RoundPhase

TALL = (0.062, 0.15, 0.855, 0.8)
"""Position of the axes in taller drawings."""
MOST_CURVES = 60
"""Maximum number of curves; more would be indistinguishable."""


def learning_plot(
    trials: Sequence[TrialReport], best: str | None, metric: QualityMetric
) -> Plot | None:
    """Return the learning curves of trials, or None if no trial was evaluated.

    Args:
        trials: all trials, of which at most ``MOST_CURVES`` are drawn, evenly sampled.
        best: trial whose curve is emphasized.
        metric: quality metric of the run.
    """
    evaluated = [trial for trial in trials if trial.qualities]
    if not evaluated:
        return None
    shown = [evaluated[place] for place in evenly(len(evaluated), MOST_CURVES)]
    chosen = next((trial for trial in evaluated if trial.id == best), None)
    factor = 100.0 if metric.error is not None else 1.0
    with drawing("learning", 1.35 * HEIGHT) as canvas:
        axes = canvas.axes(TALL)
        for trial in shown:
            if trial is not chosen:
                axes.plot(*_curve(trial, factor), color=MUTED, linewidth=0.9, alpha=0.55,
                          marker=_marker(trial), markersize=3, label=trial.id)  # fmt: skip
        if chosen is not None:
            epochs, values = _curve(chosen, factor)
            axes.plot(epochs, values, color=CURVE, linewidth=2.0, marker=_marker(chosen),
                      label=chosen.id)  # fmt: skip
            name_last(axes, epochs[-1], values[-1], chosen.id)
        drawn = [*shown, *([chosen] if chosen is not None else [])]
        axes.set_ylim(*_limits([factor * value for trial in drawn for value in trial.qualities]))
        last = max(trial.first_epoch + len(trial.qualities) - 1 for trial in drawn)
        axes.set_xlim(0.5, last + 0.5)
        label = f"{metric.label}, %" if factor > 1.0 else metric.label
        axes.set(xlabel="epoch of the trial", ylabel=label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    caption = _caption(drawn, evaluated, chosen)
    return canvas.plot("Learning curves", caption, _words(drawn, metric))


def _curve(trial: TrialReport, factor: float) -> tuple[list[int], list[float]]:
    epochs = [trial.first_epoch + place for place in range(len(trial.qualities))]
    return epochs, [factor * value for value in trial.qualities]


def _marker(trial: TrialReport) -> str:
    """Return a marker for a trial with a single point, which has no line."""
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
        said += f" The thick line is the best trial, {best.id}."
    if number < len(evaluated):
        said += f" {number} of {len(evaluated):,} trials, evenly sampled; report.json has all."
    return said


def _words(drawn: Sequence[TrialReport], metric: QualityMetric) -> str:
    reached = sorted(
        (trial.best_quality for trial in drawn if trial.best_quality is not None),
        key=metric.objective_value,
    )
    worst, best = (quality(value, metric.name) for value in (reached[0], reached[-1]))
    return f"A line chart of {metric.label} by epoch: trials reached from {worst} to {best}."


MOST_PANELS, MOST_POINTS, MOST_VALUES = 4, 150, 10
"""Maximum numbers of panels, of points in each, and of values that are shown as categories."""


def hyperparameters_plot(trials: Sequence[TrialReport], metric: QualityMetric) -> Plot | None:
    """Return the quality of HPO trials by hyperparameter, or None if no hyperparameter varies.

    There is a panel for each hyperparameter with several values.
    """
    tuned = [t for t in trials if t.phase == RoundPhase.HPO and t.best_quality is not None]
    names = varying(tuned)[:MOST_PANELS]
    if not names:
        return None
    factor = 100.0 if metric.error is not None else 1.0
    shown = [tuned[place] for place in evenly(len(tuned), MOST_POINTS)]
    reached = [factor * (trial.best_quality or 0.0) for trial in shown]
    with drawing("hyperparameters", 1.2 * HEIGHT) as canvas:
        for place, name in enumerate(names):
            width = 0.9 / len(names)
            axes = canvas.axes((0.062 + place * width, 0.19, width - 0.055, 0.74))
            _panel(axes, name, [setting_of(trial, name) for trial in shown], reached)
            if place == 0:
                label = f"best {metric.label}"
                axes.set_ylabel(f"{label}, %" if factor > 1.0 else label)
    caption = (
        "A ring is a trial of the hyperparameter optimization; bars are medians. Trials differ in "
        "several hyperparameters and in their networks."
    )
    if len(shown) < len(tuned):
        caption += f" {len(shown)} of {len(tuned):,} trials, evenly sampled."
    words = ", ".join(_name_text(name) for name in names)
    description = f"A scatter plot by {words}."
    return canvas.plot("Effects of hyperparameters", caption, description)


def importance_plot(importance: HyperparameterImportance | None) -> Plot | None:
    """Return the bars of hyperparameter importance, or None if it was not computed."""
    if importance is None or not importance.importances:
        return None
    names = list(importance.importances)
    height = 0.7 + 0.32 * len(names)
    with drawing("importance", height) as canvas:
        axes = canvas.axes((0.14, 0.55 / height, 0.777, 1.0 - 0.65 / height))
        for row, (name, share) in enumerate(importance.importances.items()):
            axes.barh([row], [share], height=0.6, color=CURVE, label=_name_text(name))
            name_point(axes, percent(share, 1), (share, row), (6, 0))
        axes.grid(visible=False)
        axes.set(xlim=(0.0, 1.0), ylim=(len(names) - 0.5, -0.5), xlabel="importance (sum 1)")
        axes.set_yticks(range(len(names)), [_name_text(name) for name in names])
    description = ", ".join(f"{_name_text(n)} {percent(s, 1)}" for n, s in
                            importance.importances.items())  # fmt: skip
    caption = f"{importance.evaluator}, over {importance.trials:,} trials. {IMPORTANCE_MEANING}"
    return canvas.plot("Hyperparameter importance", caption, f"A bar chart: {description}.")


IMPORTANCE_MEANING = (
    "Importance for being among the best tenth of the trials, by quality relative to the mean of "
    "its round, whose trials all train the same candidate."
)
"""Meaning of the importance, in one sentence."""


def _panel(axes: Axes, name: str, values: Sequence[float | str], reached: Sequence[float]) -> None:
    known = sorted(set(values), key=lambda value: (isinstance(value, str), value))
    numbers = [value for value in values if not isinstance(value, str)]
    scale = len(known) > MOST_VALUES and len(numbers) == len(values)
    places = numbers if scale else [known.index(value) for value in values]
    rings = {"markerfacecolor": "none", "markeredgewidth": 1.0, "label": "trials"}
    mark_points(axes, places, reached, **rings)
    if not scale:
        for place, value in enumerate(known):
            own = [each for each, of in zip(reached, values, strict=True) if of == value]
            axes.hlines(statistics.median(own), place - 0.3, place + 0.3, color=INK, linewidth=2)
        axes.set_xlim(-0.6, len(known) - 0.4)
    axes.set_ylim(*_limits(reached))
    if scale:
        axes.xaxis.set_major_locator(MaxNLocator(4))
    else:
        axes.set_xticks(range(len(known)), [v if isinstance(v, str) else f"{v:.4g}" for v in known])
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel(_name_text(name))


def _name_text(name: str) -> str:
    return name.replace("_", " ")


MOST_CANDIDATES = 150
"""Maximum number of candidates in the plot of predictions."""


def prediction_plot(candidates: Sequence[CandidateOutcome]) -> Plot | None:
    """Return predicted and actual accuracy of candidates, or None if no candidate has both."""
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
            markersize=7, elinewidth=1.0, label="predicted by the surrogate",
        )  # fmt: skip
        diamonds = {"marker": "D", "markersize": 6.5, "markerfacecolor": "none"}
        diamonds |= {"markeredgecolor": INK, "label": "extrapolated to longer training"}
        mark_points(axes, numbers, predicted, **diamonds, gid="predicted")
        mark_points(axes, numbers, reached, markerfacecolor=CURVE, gid="reached", label="reached")
        axes.plot(numbers, list(accumulate(reached, max)), color=CURVE, linewidth=1.0, alpha=0.5)
        axes.set_ylim(*_accuracies(expected, spread, [*reached, *predicted]))
        axes.set(xlim=(0.5, len(shown) + 0.5), xlabel="candidates in order of time")
        axes.set_ylabel("accuracy, %")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    words = (
        f"Expected and reached accuracy of {len(shown)} candidates: expected from "
        f"{min(expected):.3g}% to {max(expected):.3g}%, reached from {min(reached):.3g}% to "
        f"{max(reached):.3g}%."
    )
    caption = (
        "Bars: expected accuracy with one standard deviation. Dots: reached. Diamonds: "
        "extrapolated to longer training, as the search uses it. Line: the best so far."
    )
    if len(shown) < len(judged):
        caption += f" {len(shown)} of {len(judged):,} candidates, evenly sampled."
    return canvas.plot("Expected, reached and predicted", caption, words)


def write_prediction_plot(candidates: Sequence[CandidateOutcome], path: Path) -> None:
    """Write ``prediction_plot`` to a standalone SVG file.

    Raises:
        UsageError: the file name does not end in .svg, or no candidate has both an expected and a
            final objective.
    """
    if path.suffix != ".svg":
        raise UsageError(f"--plot {path}: the plot is an SVG file; use a name that ends in .svg")
    plot = prediction_plot(candidates)
    if plot is None:
        raise UsageError("no plot: no candidate has both an expected and a final objective yet")
    path.write_text(of_its_own(plot.svg), "utf-8")


def _accuracies(
    expected: Sequence[float], spread: Sequence[float], others: Sequence[float]
) -> tuple[float, float]:
    """Return axis limits in percent that include all points, with deviations cut to 0 to 100."""
    bars = [(e, max(e - s, 0.0), min(e + s, 100.0)) for e, s in zip(expected, spread, strict=True)]
    known = [v for v in (*others, *(end for bar in bars for end in bar)) if not math.isnan(v)]
    low, high = min(known), max(known)
    room = max(0.08 * (high - low), 0.05)
    return low - room, high + room
