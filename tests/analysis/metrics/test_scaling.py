"""Power laws, their intervals and principal components, against scikit-learn, SciPy and algebra."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from scipy import optimize, stats
from sklearn.decomposition import PCA

from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.metrics.scaling import (
    efficiency,
    fit_power_law,
    log_pca,
    speedup,
)

ACCELERATORS = [16.0, 64.0, 64.0, 128.0, 512.0, 2048.0]
MINUTES = [610.0, 171.0, 163.0, 95.0, 31.0, 11.5]


def test_a_power_law_without_noise_is_found_exactly() -> None:
    law = fit_power_law([1.0, 8.0, 27.0], [5.0, 20.0, 45.0])  # 5·x^(2/3)
    assert law.exponent == pytest.approx(2 / 3)
    assert law.at(64.0).value == pytest.approx(80.0)
    assert law.at(64.0).low == pytest.approx(80.0)


@pytest.mark.parametrize("at", [8.0, 100.0, 10_000.0])
def test_a_fit_and_its_intervals_are_scipys(at: float) -> None:
    """A prediction's variance is the line's there, by the fit's covariance, and the residuals'."""
    law = fit_power_law(ACCELERATORS, MINUTES)
    log_x, log_y = np.log(ACCELERATORS), np.log(MINUTES)
    best, covariance = optimize.curve_fit(lambda x, a, b: a + b * x, log_x, log_y)
    student = stats.t(4).ppf(0.975)
    assert law.exponent == pytest.approx(best[1])
    assert law.exponent_margin == pytest.approx(student * math.sqrt(covariance[1, 1]), rel=1e-6)
    gradient = np.array([1.0, math.log(at)])
    residual = np.sum((log_y - best[0] - best[1] * log_x) ** 2) / 4
    margin = student * math.sqrt(gradient @ covariance @ gradient + residual)
    estimate = law.at(at)
    assert estimate.low is not None
    assert estimate.high is not None
    assert math.log(estimate.value) == pytest.approx(best @ gradient)
    assert math.log(estimate.high / estimate.value) == pytest.approx(margin, rel=1e-5)
    assert math.log(estimate.value / estimate.low) == pytest.approx(margin, rel=1e-5)


def test_two_points_have_no_uncertainty() -> None:
    law = fit_power_law([64.0, 512.0], [364.73, 34.34])
    assert law.exponent == pytest.approx(math.log(34.34 / 364.73) / math.log(8.0))
    assert law.exponent_margin is None
    assert law.at(64.0).value == pytest.approx(364.73)
    assert law.at(64.0).low is None


STEEP = fit_power_law([1.0, 2.0], [1.0, 1e200])


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (partial(fit_power_law, [64.0, 64.0], [1.0, 2.0]), "two different scales"),
        (partial(fit_power_law, [], []), "two different scales"),
        (partial(fit_power_law, [1.0, 2.0], [0.0, 1.0]), "is 0; a positive number"),
        (partial(fit_power_law, [1.0, 2.0], [math.nan, 1.0]), "is nan"),
        (partial(fit_power_law, [1.0, 2.0], [math.inf, 1.0]), "is inf"),
        (partial(STEEP.at, 1e9), "too far away"),
        (partial(log_pca, [5.0, 5.0, 5.0], [5.0, 5.0, 5.0]), "training runs that differ"),
        (partial(log_pca, [5.0], [5.0]), "training runs that differ"),
        (partial(speedup, 5.0, 0.0), "throughput at the smallest scale is 0"),
    ],
)
def test_the_error_states_why_there_is_no_figure(
    compute: Callable[[], object], reason: str
) -> None:
    with pytest.raises(NotMeasuredError, match=reason):
        compute()


def test_log_pca_is_scikit_learns() -> None:
    rng = np.random.default_rng(11)
    throughput = np.exp(rng.normal(7.0, 1.2, 40))
    epochs = 12.0 * throughput**0.3 * np.exp(rng.normal(0.0, 0.15, 40))
    found = log_pca(list(throughput), list(epochs))
    peer = PCA(2).fit(np.column_stack([np.log(throughput), np.log(epochs)]))
    first = peer.components_[0] * np.sign(peer.components_[0][0])
    assert found.direction == pytest.approx(tuple(first))
    assert found.explained == pytest.approx(peer.explained_variance_ratio_[0])
    assert found.exponent == pytest.approx(first[1] / first[0])
    assert found.throughput == pytest.approx(stats.gmean(throughput))
    assert found.epochs == pytest.approx(stats.gmean(epochs))


def test_without_variation_of_throughput_there_is_no_exponent() -> None:
    found = log_pca([100.0, 100.0, 100.0], [10.0, 12.0, 15.0])
    assert found.exponent is None
    assert abs(found.direction[1]) == pytest.approx(1.0)


def test_efficiency_is_speed_up_over_the_ideal() -> None:
    faster = speedup(7_000.0, 1_000.0)
    assert faster == 7.0
    assert efficiency(faster, 512, 64) == pytest.approx(0.875)  # 7 of 8
