"""Statistics of repeated runs, against scipy, other formulas and arithmetic by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from scipy import stats

from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.metrics import statistics

QUICK_STARTS = (45.7, 45.4, 59.5)
"""GOPS of three equal runs."""


def test_the_coefficient_of_variation_is_sample_deviation_over_mean() -> None:
    # Mean 50.2; deviations -4.5, -4.8, 9.3; squares 20.25 + 23.04 + 86.49 = 129.78, half 64.89.
    assert statistics.coefficient_of_variation(QUICK_STARTS) == pytest.approx(
        math.sqrt(64.89) / 50.2
    )
    values = np.random.default_rng(1).normal(7.0, 2.0, 31)
    assert statistics.coefficient_of_variation(values.tolist()) == pytest.approx(
        stats.variation(values, ddof=1)
    )


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (partial(statistics.coefficient_of_variation, ()), "0 values only"),
        (partial(statistics.coefficient_of_variation, (3.0,)), "one run only"),
        (partial(statistics.coefficient_of_variation, (1.0, math.nan)), "not finite"),
        (partial(statistics.coefficient_of_variation, (1.0, math.inf)), "not finite"),
        (partial(statistics.coefficient_of_variation, (1.0, -1.0)), "a mean of 0 has no coeff"),
        (partial(statistics.bootstrap_limits, (1.0, 2.0)), "at least 3"),
        (partial(statistics.bootstrap_limits, (2.0, 2.0, 2.0)), "all runs are equal"),
        (partial(statistics.normal_limits, 0.1, 1, 0.9), "one run alone"),
        (partial(statistics.share_limits, 0, 0), "no runs"),
        (partial(statistics.runs_for, 10.0, 0.001), "more than 1,000,000 runs"),
        (partial(statistics.jaccard, [1], [1, 2]), "of 1 and of 2 samples cannot be compared"),
        (partial(statistics.jaccard, [], []), "no predictions"),
        (partial(statistics.jaccard, [[1]], [[1]]), "cannot be compared"),
        (partial(statistics.log_shares, (3.0,), ((3.0,),)), "one run"),
        (partial(statistics.log_shares, (3.0, 3.0), ((3.0, 3.0),)), "do not differ"),
        (partial(statistics.log_shares, (3.0, 0.0), ((3.0, 0.0),)), "no logarithm"),
        (partial(statistics.length_for, [1.0] * 7, 1.0, 0.01), "at least 8"),
        (partial(statistics.length_for, [1.0] * 20, 1.0, 0.01), "does not vary"),
    ],
)
def test_the_error_states_why_there_is_no_figure(
    compute: Callable[[], object], reason: str
) -> None:
    with pytest.raises(NotMeasuredError, match=reason):
        compute()


def test_the_bootstrap_of_many_normal_values_is_the_delta_methods_interval() -> None:
    values = np.random.default_rng(2).normal(10.0, 1.0, 150)
    variation = statistics.coefficient_of_variation(values.tolist())
    # Asymptotic variance of a normal sample's coefficient: K² (1/2 + K²) / n.
    half = 1.96 * variation * math.sqrt((0.5 + variation**2) / values.size)
    limits = statistics.bootstrap_limits(values.tolist())
    assert limits.method == "BCa bootstrap"
    assert limits.low == pytest.approx(variation - half, rel=0.1)
    assert limits.high == pytest.approx(variation + half, rel=0.1)


def test_the_bootstrap_is_the_same_each_time_and_holds_the_estimate() -> None:
    limits = statistics.bootstrap_limits(QUICK_STARTS)
    assert limits == statistics.bootstrap_limits(QUICK_STARTS)
    assert limits.high is not None
    assert limits.low <= statistics.coefficient_of_variation(QUICK_STARTS) <= limits.high


@pytest.mark.parametrize("count", [3, 5, 10, 40])
@pytest.mark.parametrize("variation", [0.005, 0.05, 0.16])
def test_the_normal_limits_are_those_of_the_noncentral_t(count: int, variation: float) -> None:
    # sqrt(n) / K of a normal sample is noncentral t with n - 1 degrees and sqrt(n) / true.
    limits = statistics.normal_limits(variation, count, 0.90)
    seen = math.sqrt(count) / variation
    for true, probability in ((limits.low, 0.05), (limits.high, 0.95)):
        if true is None or true > 0.4:
            continue  # Vangel's approximation is stated for below a third.
        found = stats.nct.cdf(seen, count - 1, math.sqrt(count) / true)
        assert found == pytest.approx(probability, abs=2e-3)


def test_few_runs_that_differ_much_have_no_upper_limit() -> None:
    assert statistics.normal_limits(0.9, 5, 0.90).high is None


def test_the_share_of_runs_has_wilsons_interval() -> None:
    # (p + z²/2n ± z sqrt(p (1-p)/n + z²/4n²)) / (1 + z²/n), p = 8/10, z = 1.959964.
    z = 1.959963984540054
    middle, half = 0.8 + z * z / 20.0, z * math.sqrt(0.016 + z * z / 400.0)
    limits = statistics.share_limits(8, 10)
    assert limits.low == pytest.approx((middle - half) / (1.0 + z * z / 10.0))
    assert limits.high == pytest.approx((middle + half) / (1.0 + z * z / 10.0))
    assert statistics.share_limits(10, 10).high == pytest.approx(1.0)
    assert statistics.share_limits(10, 10).low > 0.7


@pytest.mark.parametrize(
    ("variation", "precision", "runs"),
    [
        # Tables: t(0.975; 17) = 2.110, 2.110 * 2 / sqrt(18) = 0.995 %; t(0.975; 16) = 2.120 with
        # 17 runs gives 1.028 %.
        (0.02, 0.01, 18),
        # t(0.975; 6) = 2.447, 2.447 / sqrt(7) = 0.925 %; t(0.975; 5) = 2.571 with 6: 1.050 %.
        (0.01, 0.01, 7),
        (0.0, 0.01, 2),
    ],
)
def test_how_many_runs_a_precision_needs(variation: float, precision: float, runs: int) -> None:
    assert statistics.runs_for(variation, precision) == runs


def test_predictions_are_similar_as_sets_of_pairs_are() -> None:
    rng = np.random.default_rng(3)
    one, other = rng.integers(0, 4, 500), rng.integers(0, 4, 500)
    pairs, others = set(enumerate(one.tolist())), set(enumerate(other.tolist()))
    assert statistics.jaccard(one, other) == pytest.approx(
        len(pairs & others) / len(pairs | others)
    )
    assert statistics.jaccard([1, 2, 3], [1, 2, 4]) == pytest.approx(2 / 4)
    assert statistics.jaccard(one, one) == 1.0
    assert statistics.jaccard([0, 1], [1, 0]) == 0.0


def test_a_products_variance_is_divided_among_its_factors() -> None:
    e = math.e
    # Logarithms: 1, 2, 3 and 0, 0, 3; y 1, 2, 6. About their means: -1, 0, 1; -1, -1, 2; -2, -1, 3.
    # Products with y: 2 + 0 + 3 = 5 and 2 + 1 + 6 = 9; of y 4 + 1 + 9 = 14.
    parts = ((e, e**2, e**3), (1.0, 1.0, e**3))
    assert statistics.log_shares((e, e**2, e**6), parts) == pytest.approx((5 / 14, 9 / 14))
    assert statistics.log_shares((2.0, 4.0), ((2.0, 4.0), (1.0, 1.0))) == pytest.approx((1.0, 0.0))


def _autoregressive(phi: float, size: int, seed: int) -> list[float]:
    noise = np.random.default_rng(seed).normal(size=size)
    values = [0.0]
    for each in noise.tolist():
        values.append(phi * values[-1] + each)
    return values[1:]


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8, -0.4])
def test_the_autocorrelation_time_of_an_autoregressive_series_is_known(phi: float) -> None:
    found = statistics.integrated_autocorrelation(_autoregressive(phi, 2**16, 4))
    assert found == pytest.approx((1.0 + phi) / (1.0 - phi), rel=0.1)


def test_a_run_of_the_stated_length_has_the_requested_error() -> None:
    phi, mean, step = 0.7, 50.0, 2.0
    series = [mean + each for each in _autoregressive(phi, 2**16, 5)]
    # Variance of the series 1 / (1 - phi²), of a long mean of n (1 / (1 - phi)²) / n.
    wanted = step * (1.0 / (1.0 - phi) / mean / 0.01) ** 2
    assert statistics.length_for(series, step, 0.01) == pytest.approx(wanted, rel=0.1)
