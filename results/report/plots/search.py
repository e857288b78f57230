"""What the search expected of its candidates, and what came of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from matplotlib.ticker import MaxNLocator

from aiperf_hpc.errors import UsageError
from aiperf_hpc.results.report.plots.colours import CURVE, INK, MUTED, of_its_own
from aiperf_hpc.results.report.plots.figure import (
    HEIGHT,
    Plot,
    dress,
    evenly,
    new_figure,
    save,
    scaled,
    settings,
)
from aiperf_hpc.results.report.search_replay import CandidateOutcome

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
    with settings("prediction"):
        figure = new_figure(1.35 * HEIGHT)
        axes = figure.add_axes((0.062, 0.15, 0.855, 0.8))
        numbers = [i + 1 for i in range(len(shown))]
        axes.errorbar(
            numbers, expected, yerr=spread, color=MUTED, linestyle="none", marker="_",
            markersize=7, elinewidth=1.0,
        )  # fmt: skip
        axes.plot(
            numbers, predicted, linestyle="none", marker="D", markersize=6.5,
            markerfacecolor="none", markeredgecolor=INK, markeredgewidth=1.0, gid="predicted",
        )  # fmt: skip
        axes.plot(
            numbers, reached, linestyle="none", marker="o", markersize=4.2, color=CURVE,
            gid="reached",
        )  # fmt: skip
        axes.plot(numbers, _highest_so_far(reached), color=CURVE, linewidth=1.0, alpha=0.5)
        axes.set_ylim(*_accuracies(expected, spread, [*reached, *predicted]))
        axes.set_xlim(0.0, len(shown) + 1.0)
        axes.set_xlabel("candidates in order of time", color=MUTED)
        axes.set_ylabel("accuracy, %", color=MUTED)
        dress(axes)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        svg = save(figure, "prediction")
    words = (
        f"Expected and reached accuracy of {len(shown)} candidates: expected from "
        f"{min(expected):.3g}% to {max(expected):.3g}%, reached from {min(reached):.3g}% to "
        f"{max(reached):.3g}%."
    )
    caption = (
        "Bars: expected when it was chosen, with one deviation. Dots: reached. Diamonds: predicted "
        "of longer training, which is what the search was told. Line: the best reached so far."
    )
    if len(shown) < len(judged):
        caption += f" {len(shown)} of {len(judged):,} candidates, evenly taken."
    return Plot("Expected, reached and predicted", caption, words, svg)


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
    path.write_text(of_its_own(str(plot.svg)), "utf-8")


def _highest_so_far(values: Sequence[float]) -> list[float]:
    return list(accumulate(values, max))


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
