"""Learning curves: the quality of each trial after each of its epochs."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.ticker import MaxNLocator

from aiperf_hpc.formatting import quality
from aiperf_hpc.objective import Measure
from aiperf_hpc.results.report.plots.colours import CURVE, MUTED
from aiperf_hpc.results.report.plots.figure import (
    HEIGHT,
    Plot,
    dress,
    evenly,
    name_last,
    new_figure,
    save,
    settings,
)
from aiperf_hpc.results.report.rows import TrialReport

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
    with settings("learning"):
        figure = new_figure(1.35 * HEIGHT)
        axes = figure.add_axes((0.062, 0.15, 0.855, 0.8))
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
        axes.set_xlabel("epoch of the trial", color=MUTED)
        axes.set_ylabel(f"{measure.label}, %" if factor > 1.0 else measure.label, color=MUTED)
        dress(axes)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        svg = save(figure, "learning")
    return Plot("Learning curves", _caption(drawn, evaluated, chosen), _words(drawn, measure), svg)


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
    said = "One line a trial, a point after each epoch that was evaluated."
    if best is not None:
        said += f" The strong one is {best.id}, the best."
    if number < len(evaluated):
        said += f" {number} of {len(evaluated):,} trials, evenly taken; report.json has all."
    return said


def _words(drawn: Sequence[TrialReport], measure: Measure) -> str:
    reached = sorted(
        (trial.best_quality for trial in drawn if trial.best_quality is not None),
        key=measure.objective_value,
    )
    worst, best = (quality(value, measure.name) for value in (reached[0], reached[-1]))
    return f"A line chart of {measure.label} by epoch: trials reached from {worst} to {best}."
