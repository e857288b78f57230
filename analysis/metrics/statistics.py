"""Statistics of repeated runs: pure functions of numbers, independent of the measured quantity.

``scipy.stats`` is imported lazily, because its import takes longer than the rest of a command.
"""

from __future__ import annotations

import math
import warnings
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.trial import Value

CONFIDENCE = 0.95
RESAMPLES = 9999
SEED = 0
"""Seed of the bootstrap's resamples, so that equal values always give the same interval."""
FEWEST_TO_RESAMPLE = 3
"""Minimum number of values: two have only three different resamples, too few for an interval."""
FEW = 10
"""Number of values below which a bootstrapped interval of a deviation is too narrow."""
FEWEST_WINDOWS = 8
MOST_RUNS = 1_000_000


class ConfidenceInterval(Value):
    """A confidence interval. An unbounded end is None."""

    low: float
    high: float | None
    method: str


def coefficient_of_variation(values: Sequence[float]) -> float:
    """Return the sample standard deviation over the mean, a pure number.

    s / x̄ with s² = Σ(x - x̄)² / (n - 1). HPC AI500 (Jiang et al. 2021) and DAWNBench (Coleman et
    al. 2019) report it for repeated runs.

    Raises:
        NotMeasuredError: there are fewer than two values, one is not finite, or the mean is not
            positive, so a fraction of it is meaningless.
    """
    known = _known(values, 2)
    mean = float(known.mean())
    if mean <= 0.0:
        raise NotMeasuredError(f"a mean of {mean:g} has no coefficient of variation")
    return float(known.std(ddof=1)) / mean


def bootstrap_limits(values: Sequence[float]) -> ConfidenceInterval:
    """Return a bootstrapped confidence interval of the coefficient of variation.

    Bias-corrected and accelerated (Efron 1987, "Better Bootstrap Confidence Intervals", JASA 82),
    by percentiles if that is degenerate. It assumes no distribution, but is too narrow for few
    values.

    Raises:
        NotMeasuredError: as for ``coefficient_of_variation``; or there are fewer than three values,
            or only equal values.
    """
    known = _known(values, FEWEST_TO_RESAMPLE)
    coefficient_of_variation(values)
    if float(np.ptp(known)) == 0.0:
        raise NotMeasuredError("all runs are equal: nothing can be resampled")
    for method, name in (("BCa", "BCa bootstrap"), ("percentile", "percentile bootstrap")):
        low, high = _bootstrap(known, method)
        if math.isfinite(low) and math.isfinite(high):
            return ConfidenceInterval(low=low, high=high, method=name)
    raise NotMeasuredError("the bootstrap yields no interval for these values")


def _bootstrap(values: NDArray[np.float64], method: str) -> tuple[float, float]:
    from scipy import stats

    with warnings.catch_warnings():
        # Also signaled by NaN, which is checked below.
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        warnings.simplefilter("ignore", RuntimeWarning)
        found = stats.bootstrap(
            (values,),
            lambda v, axis: np.std(v, axis=axis, ddof=1) / np.mean(v, axis=axis),
            confidence_level=CONFIDENCE,
            n_resamples=RESAMPLES,
            method=method,
            rng=np.random.default_rng(SEED),
        ).confidence_interval
    return float(found.low), float(found.high)


def normal_limits(variation: float, count: int, confidence: float) -> ConfidenceInterval:
    """Return a confidence interval of the coefficient of variation of normal values.

    McKay's chi-square approximation as modified by Vangel (1996, "Confidence Intervals for a
    Normal Coefficient of Variation", The American Statistician 50, 21-26)::

        K / sqrt(((u + 2) / n - 1) K² + u / (n - 1)),  u a quantile of chi-square with n - 1

    It is valid for at least two values and coefficients below about a third. The upper limit is
    None if there are too few values to bound it.

    Raises:
        NotMeasuredError: there are fewer than two values.
    """
    from scipy import stats

    if count < 2:
        raise NotMeasuredError("one run alone has no variation")
    tail = (1.0 - confidence) / 2.0
    quantiles = (stats.chi2.ppf(1.0 - tail, count - 1), stats.chi2.ppf(tail, count - 1))
    low, high = (_vangel(variation, count, float(u)) for u in quantiles)
    return ConfidenceInterval(
        low=low,
        high=high if math.isfinite(high) else None,
        method="normal values (Vangel 1996)",
    )


def _vangel(variation: float, count: int, quantile: float) -> float:
    under = ((quantile + 2.0) / count - 1.0) * variation**2 + quantile / (count - 1)
    return variation / math.sqrt(under) if under > 0.0 else math.inf


def share_limits(reached: int, runs: int) -> ConfidenceInterval:
    """Return a confidence interval of the fraction of successful runs.

    Wilson's score interval (1927), as Brown, Cai and DasGupta (2001, "Interval Estimation for a
    Binomial Proportion", Statistical Science 16) recommend for few trials.

    Raises:
        NotMeasuredError: there are no runs.
    """
    from scipy import stats

    if runs < 1:
        raise NotMeasuredError("there are no runs")
    found = stats.binomtest(reached, runs).proportion_ci(CONFIDENCE, method="wilson")
    return ConfidenceInterval(low=float(found.low), high=float(found.high), method="Wilson")


def runs_for(variation: float, precision: float) -> int:
    """Return the number of runs at which their mean has a requested precision.

    The least n of at least 2 with t(1 - α/2; n - 1) · CoV / √n <= precision: the half width of
    Student's interval of the mean, relative to the mean (Montgomery, "Design and Analysis of
    Experiments", choice of sample size).

    Raises:
        NotMeasuredError: more than a million runs would be needed.
    """
    from scipy import stats

    quantile = 1.0 - (1.0 - CONFIDENCE) / 2.0

    def enough(runs: int) -> bool:
        return bool(stats.t.ppf(quantile, runs - 1) * variation <= precision * math.sqrt(runs))

    if not enough(MOST_RUNS):
        raise NotMeasuredError(f"more than {MOST_RUNS:,} runs would be needed")
    counts = range(2, MOST_RUNS + 1)  # The half width decreases with every run.
    return counts[bisect_left(counts, True, key=enough)]


def jaccard(one: ArrayLike, other: ArrayLike) -> float:
    """Return the Jaccard similarity of two models' predictions on the same samples, 0 to 1.

    |A ∩ B| / |A ∪ B| of the sets A and B of pairs (sample, predicted class): with k equal
    predictions of n it is k / (2n - k). It needs no labels, and equal wrong predictions count as
    agreement (Jaccard 1912, "The Distribution of the Flora in the Alpine Zone").

    Args:
        one: predicted class of each sample, (samples,).
        other: predictions of the other model, likewise.

    Raises:
        NotMeasuredError: the numbers of samples differ, or there are none.
    """
    first, second = np.asarray(one), np.asarray(other)
    if first.shape != second.shape or first.ndim != 1:
        raise NotMeasuredError(
            f"predictions of {first.size} and of {second.size} samples cannot be compared"
        )
    if not first.size:
        raise NotMeasuredError("there are no predictions")
    equal = int((first == second).sum())
    return equal / (2 * first.size - equal)


def log_shares(total: Sequence[float], parts: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return the fraction of each factor in the variance of a product's logarithm.

    With y = Π x_j, so that ln y = Σ ln x_j, the fraction of x_j is cov(ln x_j, ln y) / var(ln y).
    The fractions add up to one. Correlated factors divide their covariance evenly; a factor that
    compensates others has a negative fraction (Klenow and Rodríguez-Clare 1997, "The
    Neoclassical Revival in Growth Economics", NBER Macroeconomics Annual 12, section 2).

    Args:
        total: y of each run.
        parts: x_j of each run, by factor; their product is y.

    Raises:
        NotMeasuredError: there are fewer than two runs, a factor is not positive, or y does not
            vary.
    """
    logs = [_logarithms(part) for part in parts]
    whole = _logarithms(total)
    centred = whole - whole.mean()
    variance = float(centred @ centred)
    # Smaller differences are rounding errors of the logarithms.
    if variance <= whole.size * (4.0 * np.finfo(float).eps * max(1.0, abs(whole).max())) ** 2:
        raise NotMeasuredError("the runs do not differ: there is nothing to divide")
    return tuple(float((log - log.mean()) @ centred) / variance for log in logs)


def _logarithms(values: Sequence[float]) -> NDArray[np.float64]:
    known = _known(values, 2)
    if float(known.min()) <= 0.0:
        raise NotMeasuredError(f"{known.min():g} has no logarithm")
    found: NDArray[np.float64] = np.log(known)
    return found


def integrated_autocorrelation(series: Sequence[float]) -> float:
    """Return the integrated autocorrelation time of a series, in steps.

    τ = 1 + 2 Σ ρ(k); the variance of the mean of n steps is σ² τ / n. τ is 1 for independent steps.
    The sum is truncated by Geyer's initial positive sequence (1992, "Practical Markov Chain
    Monte Carlo", Statistical Science 7, section 3.3): before the first pair ρ(2m) +
    ρ(2m + 1) that is not positive.

    Raises:
        NotMeasuredError: the series has fewer than 8 steps, or does not vary.
    """
    known = _known(series, FEWEST_WINDOWS)
    centred = known - known.mean()
    size = known.size
    spectrum = np.fft.rfft(centred, 2 * size)
    covariance = np.fft.irfft(spectrum * spectrum.conj(), 2 * size)[:size]
    if float(np.ptp(known)) == 0.0:
        raise NotMeasuredError("the series does not vary")
    correlation = covariance / covariance[0]
    pairs = correlation[: size - size % 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs <= 0.0)
    leading = pairs[: negative[0]] if negative.size else pairs
    # The first pair contains ρ(0), which counts once. A mean's variance is never negative.
    return max(float(2.0 * leading.sum() - 1.0), 1.0 / size)


def length_for(series: Sequence[float], step_seconds: float, precision: float) -> float:
    """Return the length of a run in seconds at which its mean rate has a standard error.

    The mean of a stationary series over a time T has the variance σ² τ Δ / T, with the deviation σ
    and the integrated autocorrelation time τ of its steps of Δ seconds; so
    T = τ Δ (σ / x̄)² / precision². The error decreases as 1 / √T (Flegal and Jones 2010, "Batch
    Means and Spectral Variance Estimators in Markov Chain Monte Carlo", Annals of Statistics 38).

    Args:
        series: rate in each step.
        step_seconds: length of a step.
        precision: requested standard error, relative to the mean.

    Raises:
        NotMeasuredError: as for ``integrated_autocorrelation``, or the mean rate is zero.
    """
    autocorrelation = integrated_autocorrelation(series)
    return autocorrelation * step_seconds * (coefficient_of_variation(series) / precision) ** 2


def _known(values: Sequence[float], least: int) -> NDArray[np.float64]:
    known = np.asarray(values, np.float64)
    if known.size < least:
        count = "one run" if known.size == 1 else f"{known.size} values"
        raise NotMeasuredError(f"{count} only: at least {least} are needed")
    if not np.isfinite(known).all():
        raise NotMeasuredError("a value is not finite")
    return known
