"""The contribution of a factor, against arithmetic and against draws of the same ratio."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aiperf_hpc.analysis.study.result import improvement


def test_a_rate_that_doubles_and_a_time_that_halves_are_twice_as_good() -> None:
    assert improvement([10.0], [20.0], higher_is_better=True).value == 2.0
    assert improvement([20.0], [10.0], higher_is_better=False).value == 2.0
    assert improvement([20.0], [10.0], higher_is_better=True).value == 0.5


def test_one_measurement_of_a_system_has_no_error() -> None:
    assert improvement([10.0], [19.0, 21.0], higher_is_better=True).deviation is None


def test_the_error_is_that_of_a_ratio_of_means() -> None:
    """Means 10 and 20, standard errors 1 and 1: 2 * sqrt(0.1**2 + 0.05**2)."""
    found = improvement([9.0, 11.0], [19.0, 21.0], higher_is_better=True)
    assert found.deviation == pytest.approx(2.0 * math.sqrt(0.1**2 + 0.05**2))


def test_the_error_is_the_spread_of_repeated_studies() -> None:
    rng = np.random.default_rng(3)
    before = rng.normal(10.0, 0.3, (4000, 5))
    after = rng.normal(17.0, 0.7, (4000, 5))
    found = [
        improvement(list(b), list(a), higher_is_better=True)
        for b, a in zip(before, after, strict=True)
    ]
    spread = np.std([ratio.value for ratio in found])
    stated = np.mean([ratio.deviation for ratio in found if ratio.deviation is not None])
    # With five measurements a standard deviation is 6 % too small in the mean.
    assert stated == pytest.approx(spread, rel=0.1)


@pytest.mark.parametrize("values", [[], [0.0], [-1.0, 2.0]])
def test_nothing_is_said_without_positive_measurements(values: list[float]) -> None:
    with pytest.raises(ValueError, match="positive measurements"):
        improvement(values, [1.0], higher_is_better=True)
