"""Predicted accuracy: form, bounds, and error on recorded training curves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiperf_hpc.replica.trials.prediction import predicted_value

CURVES = Path(__file__).parents[2] / "data" / "learning_curves.json"
SEEN = 10
EPOCHS = np.arange(1, 16)


@pytest.mark.parametrize("shift", [0.0, 0.1, 3.0])
def test_a_curve_of_the_fitted_form_is_continued_with_decreasing_gains(shift: float) -> None:
    """Half of the gain of a doubling, a quarter of the next one's, ...: 0.08 in total."""
    curve = 0.08 * np.log2(EPOCHS + shift) + 0.30

    def doublings(number: int) -> int:
        return round((15 + shift) * 2.0**number - shift)

    half, most = (predicted_value(curve, doublings(n)) - curve[-1] for n in (1, 30))
    assert half == pytest.approx(0.04, abs=1e-3)
    assert most == pytest.approx(0.08, abs=1e-6)
    at = predicted_value(curve, 90)
    assert at == pytest.approx(curve[-1] + 0.08 * (1 - (15 + shift) / (90 + shift)), abs=1e-9)


def test_an_outlier_changes_the_prediction_by_a_fraction_of_its_error() -> None:
    curve = 0.08 * np.log2(EPOCHS) + 0.30
    fallen = curve.copy()
    fallen[7] -= 0.15
    assert predicted_value(fallen, 90) == pytest.approx(predicted_value(curve, 90), abs=0.05)


@pytest.mark.parametrize(
    ("curve", "epoch"),
    [
        ([0.1, 0.5, 0.4], 90),  # Too few points.
        ([0.9, 0.8, 0.7, 0.6, 0.5], 90),
        ([0.7] * 9, 90),
        ([0.0] * 5, 90),
        ([1.0] * 5, 90),
        ([0.1, 0.3, 0.4, 0.5], 4),  # An observed epoch.
        ([0.1, 0.3, 0.4, 0.5], 2),
    ],
)
def test_the_prediction_is_the_best_observed_value(curve: list[float], epoch: int) -> None:
    assert predicted_value(curve, epoch) == pytest.approx(max(curve), abs=1e-12)


def test_four_rising_points_are_extrapolated() -> None:
    assert predicted_value([0.1, 0.3, 0.4, 0.5], 90) > 0.5


@pytest.mark.parametrize(
    "accuracies", [[], [0.5, float("nan"), 0.5, 0.5], [0.1, float("inf")], [float("nan")]]
)
def test_a_prediction_without_finite_values_is_rejected(accuracies: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        predicted_value(accuracies, 90)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=60), st.integers(1, 10**6))
def test_a_prediction_lies_between_the_best_observed_and_one(
    accuracies: list[float], epoch: int
) -> None:
    predicted = predicted_value(accuracies, epoch)
    assert max(accuracies) <= predicted <= 1.0


class Curve(NamedTuple):
    """A recorded training curve: all its epochs, and a warm-up of ten epochs."""

    accuracies: list[float]
    warmup: list[float]


def curves() -> Iterator[Curve]:
    recorded = json.loads(CURVES.read_text("utf-8"))
    samples = recorded["validation_samples"]
    for curve in recorded["curves"]:
        yield Curve(*([h / samples for h in curve[key]] for key in ("correct", "warmup_correct")))


def error(
    predict: Callable[[Sequence[float], int], float], seen: Callable[[Curve], Sequence[float]]
) -> float:
    """Return the mean absolute error at the last epoch, in accuracy."""
    return fmean(abs(predict(seen(c), len(c.accuracies)) - c.accuracies[-1]) for c in curves())


@pytest.mark.parametrize(
    "seen", [lambda c: c.accuracies[:SEEN], lambda c: c.warmup], ids=["first epochs", "warm-up"]
)
def test_the_prediction_of_real_curves_is_better_than_the_last_and_best_observed_value(
    seen: Callable[[Curve], Sequence[float]],
) -> None:
    predicted = error(predicted_value, seen)
    assert predicted < error(lambda accuracies, epoch: accuracies[-1], seen)
    assert predicted < error(lambda accuracies, epoch: max(accuracies), seen)
    assert predicted < 0.035
