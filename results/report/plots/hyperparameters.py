"""What trials reached with each value of each hyperparameter that was tuned."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from aiperf_hpc.objective import Measure
from aiperf_hpc.results.report.plots.colours import CURVE, GRID, INK, MUTED
from aiperf_hpc.results.report.plots.figure import (
    HEIGHT,
    Plot,
    dress,
    evenly,
    new_figure,
    save,
    settings,
)
from aiperf_hpc.results.report.rows import TrialReport
from aiperf_hpc.trial import Hyperparameters, RoundPhase

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
    with settings("hyperparameters"):
        figure = new_figure(1.2 * HEIGHT)
        for place, name in enumerate(names):
            width = 0.9 / len(names)
            axes = figure.add_axes((0.062 + place * width, 0.19, width - 0.055, 0.74))
            _panel(axes, name, _values(shown, name), reached)
            if place == 0:
                label = f"best {measure.label}"
                axes.set_ylabel(f"{label}, %" if factor > 1.0 else label, color=MUTED)
        svg = save(figure, "hyperparameters")
    caption = (
        "A ring is a trial of hyperparameter optimisation, by the best that it reached; bars are "
        "medians. Trials differ in more than one of them, and in their networks."
    )
    if len(shown) < len(tuned):
        caption += f" {len(shown)} of {len(tuned):,} trials, evenly taken."
    words = ", ".join(_spoken(name) for name in names)
    return Plot("Effects of hyperparameters", caption, f"A scatter plot by {words}.", svg)


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
    axes.plot(places, reached, linestyle="none", marker="o", markersize=4.2, clip_on=False,
              markerfacecolor="none", markeredgecolor=CURVE, markeredgewidth=1.0)  # fmt: skip
    if not scale:
        for place, value in enumerate(known):
            own = [each for each, of in zip(reached, values, strict=True) if of == value]
            axes.hlines(statistics.median(own), place - 0.3, place + 0.3, color=INK, linewidth=2)
        axes.set_xlim(-0.6, len(known) - 0.4)
    low, high = min(reached), max(reached)
    room = max(0.08 * (high - low), 1e-3 * max(abs(low), abs(high)), 1e-9)
    axes.set_ylim(low - room, high + room)
    dress(axes)
    if scale:
        axes.xaxis.set_major_locator(MaxNLocator(4))
    else:
        axes.set_xticks(range(len(known)), [_said(value) for value in known])
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.spines["bottom"].set_color(GRID)
    axes.set_xlabel(_spoken(name), color=MUTED)


def _said(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _spoken(name: str) -> str:
    return name.replace("_", " ")
