"""Scaling of throughput, epochs and time with the number of accelerators.

Power laws are straight lines in logarithms: y = a·x^b is ln y = ln a + b·ln x, which is fitted by
ordinary least squares. Residuals of ln y are relative errors of y, so machines with 10 and with
10,000 accelerators have equal weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.trial import Value

LEVEL = 0.95
"""Confidence level of intervals."""


class Estimate(Value):
    """A predicted value with its prediction interval for one more entry."""

    value: float
    low: float | None
    """Lower end; None, like ``high``, if only two points determine the law, without residuals."""
    high: float | None


class PowerLaw(Value):
    """A power law y = mean_y · (x / mean_x)^exponent, fitted to points in logarithms."""

    mean_x: float
    """Geometric mean; the line passes through both means."""
    mean_y: float
    exponent: float
    exponent_margin: float | None
    """Half width of the exponent's 95 % confidence interval by Student's t; None for two points."""
    points: int
    residual: float | None
    """Standard deviation of ln y about the line, with n - 2 degrees of freedom."""
    spread: float
    """Sum of squared deviations of ln x from its mean."""

    def at(self, x: float) -> Estimate:
        """Predict y, with the 95 % prediction interval of one new observation.

        ln y ± t(n-2) · s · sqrt(1 + 1/n + (ln x - mean)² / spread), the textbook interval of
        simple linear regression (Draper and Smith, Applied Regression Analysis, section 1.4).
        """
        distance = math.log(x / self.mean_x)
        log_y = math.log(self.mean_y) + self.exponent * distance
        if self.residual is None:
            return Estimate(value=_exp(log_y), low=None, high=None)
        far = distance**2 / self.spread
        margin = _quantile(self.points - 2) * self.residual * math.sqrt(1 + 1 / self.points + far)
        return Estimate(value=_exp(log_y), low=_exp(log_y - margin), high=_exp(log_y + margin))


class PrincipalComponent(Value):
    """First principal component of training runs in logarithms of throughput and epochs."""

    direction: tuple[float, float]
    """Unit vector of (ln throughput, ln epochs); its first part is not negative."""
    explained: float
    """Fraction of the total variance along it."""
    exponent: float | None
    """Exponent of epochs as a power of throughput along it; None if throughput does not vary.

    At 0, higher throughput needs no more epochs, and the training time decreases proportionally; at
    1 it does not decrease at all.
    """
    throughput: float
    """Geometric mean, samples/s: the line passes through it."""
    epochs: float
    """Geometric mean."""
    trainings: int


def speedup(value: float, base: float) -> float:
    """Return the ratio of a rate to ``base``, a pure number.

    MLBench reports it for the total time and for computation alone. As a ratio of rates (work per
    second), it equals base seconds over seconds, independent of the amount of work.
    """
    return value / _positive(base, "the throughput at the smallest scale")


def efficiency(speed: float, accelerators: int, base_accelerators: int) -> float:
    """Return a speed-up over the ideal one, which is proportional to the accelerators or ranks.

    1 is ideal. For throughput this is the parallel efficiency, plotted by MLPerf HPC against the
    ideal line; for the inverse of the time it includes the number of epochs.
    """
    return speed * base_accelerators / _positive(accelerators, "the number of accelerators")


def fit_power_law(xs: Sequence[float], ys: Sequence[float]) -> PowerLaw:
    """Fit y = a·x^b by least squares in logarithms.

    Raises:
        NotMeasuredError: there are fewer than two different x, or a value has no logarithm.
    """
    from scipy import stats

    if len(set(xs)) < 2:
        raise NotMeasuredError("a power law needs two different scales")
    log_x, log_y = (_logarithms(values) for values in (xs, ys))
    fit = stats.linregress(log_x, log_y)
    mean = math.fsum(log_x) / len(log_x)
    spread = math.fsum((x - mean) ** 2 for x in log_x)
    free = len(log_x) - 2
    return PowerLaw(
        mean_x=_exp(mean),
        mean_y=geometric_mean(ys),
        exponent=float(fit.slope),
        exponent_margin=_quantile(free) * float(fit.stderr) if free else None,
        points=len(log_x),
        # The standard error of a slope is s / sqrt(spread).
        residual=float(fit.stderr) * math.sqrt(spread) if free else None,
        spread=spread,
    )


def log_pca(throughputs: Sequence[float], epochs: Sequence[float]) -> PrincipalComponent:
    """Return the first principal component of (ln throughput, ln epochs) over training runs.

    MLPerf HPC (Farrell et al. 2021) analyzes the epochs to converge and the throughput of its
    submissions in logarithms by principal components, because training time is their quotient.
    In this implementation, a point is one training run; the logarithms are centered but not divided
    by their standard deviations, because both are relative changes: one percent of either is one
    percent of time.

    Raises:
        NotMeasuredError: all training runs are equal, or a value has no logarithm.
    """
    import numpy as np

    logs = np.column_stack([_logarithms(throughputs), _logarithms(epochs)])
    centre = logs.mean(axis=0)
    _, strengths, directions = np.linalg.svd(logs - centre, full_matrices=False)
    variance = strengths**2
    if len(logs) < 2 or variance.sum() <= 1e-24 * len(logs):
        raise NotMeasuredError("principal components need training runs that differ")
    first = directions[0] if directions[0][0] >= 0.0 else -directions[0]
    along, across = (float(part) for part in first)
    return PrincipalComponent(
        direction=(along, across),
        explained=float(variance[0] / variance.sum()),
        exponent=across / along if along > 1e-12 else None,
        throughput=_exp(float(centre[0])),
        epochs=_exp(float(centre[1])),
        trainings=len(logs),
    )


def geometric_mean(values: Sequence[float]) -> float:
    """Return the mean of the logarithms. Raises NotMeasuredError if a value has none."""
    return _exp(math.fsum(_logarithms(values)) / len(values))


def _logarithms(values: Sequence[float]) -> list[float]:
    for value in values:
        _positive(value, "a value on a logarithmic scale")
    return [math.log(value) for value in values]


def _positive(value: float, name: str) -> float:
    if not (value > 0.0 and math.isfinite(value)):
        raise NotMeasuredError(f"{name} is {value:g}; a positive number is required")
    return value


def _quantile(free: int) -> float:
    from scipy import stats

    return float(stats.t.ppf(0.5 + LEVEL / 2, free))


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        raise NotMeasuredError("the prediction overflows: the scale is too far away") from None
