"""The covariance of a Gaussian process over graphs, and its maximum a posteriori estimate.

It is a weighted sum of Matern covariances, one with its own length scale for each part of a
description, plus the noise of single observations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky
from scipy.optimize import minimize

from aiperf_hpc.errors import AIPerfError, restated
from aiperf_hpc.morphism.surrogate.graph_description import PARTS

Matrix = NDArray[np.float64]
Numbers = NDArray[np.float64]
Rows = NDArray[np.float32]
"""Descriptions relative to the first observed one, (points, SIZE)."""

LEAST_NOISE = 1e-4
"""Minimum noise variance of a single observation, relative to the signal."""
DECIMALS = 3
"""Decimals of the estimated logarithms of lengths, weights and noise."""


class SurrogateError(AIPerfError):
    """The Gaussian process could not be computed."""


@dataclass(frozen=True, slots=True)
class Covariance:
    """The estimated covariance of standardized objective values, relative to the signal."""

    lengths: Numbers
    """Length scale of each part, (parts,)."""
    weights: Numbers
    """Fraction of the variance of each part, (parts,); their sum is 1."""
    noise: float
    """Noise variance of a single observation, relative to the signal."""

    def between(self, left: Rows, right: Rows) -> Matrix:
        """Return the covariance matrix, (left, right)."""
        total = np.zeros((len(left), len(right)))
        for part, length, weight in zip(PARTS.values(), self.lengths, self.weights, strict=True):
            total += weight * _matern(_distances(left[:, part], right[:, part]) / length)
        return total


def _distances(first: Rows, second: Rows) -> Matrix:
    """Return the Euclidean distances, (first, second)."""
    # Squares of near points nearly cancel, so float32 would lose the distance.
    left, right = first.astype(np.float64), second.astype(np.float64)
    squares = np.square(left).sum(axis=1)[:, None] + np.square(right).sum(axis=1)
    squares -= 2.0 * (left @ right.T)
    distances: Matrix = np.sqrt(np.maximum(squares, 0.0))
    return distances


def _matern(distance: Matrix) -> Matrix:
    """Return the Matern covariance with smoothness 5/2 at distances in length scales."""
    u = math.sqrt(5.0) * distance
    result: Matrix = (1.0 + u * (1.0 + u / 3.0)) * np.exp(-u)
    return result


def factorize(matrix: Matrix) -> Matrix:
    """Return the lower Cholesky factor. Raises SurrogateError if the matrix has none."""
    what = f"the covariance of {len(matrix)} graphs could not be factorized"
    with restated(what, SurrogateError, caught=np.linalg.LinAlgError):
        factor: Matrix = cholesky(matrix, lower=True, check_finite=False)
    return factor


def signal_variance(squares: float, scatter: float, noise: float, observations: float) -> float:
    """Return the signal's variance, estimated with a prior worth one observation of variance 1."""
    return (squares + scatter / noise + 1.0) / (observations + 1.0)


def learned_covariance(
    points: Rows, values: Numbers, counts: Numbers, scatter: float
) -> Covariance:
    """Return the covariance with the highest posterior density; the signal's variance is profiled.

    The priors on logarithms are: lengths near 1.6 median distances of their part, equal weights,
    noise near 5 % of the signal. They dominate with few points only.
    """
    parts = list(PARTS.values())
    distances = [_distances(points[:, part], points[:, part]) for part in parts]
    usual = np.array([_median_distance(distance) for distance in distances])
    likelihood = Likelihood(distances, values, counts, scatter, np.log(usual) + 0.5)
    found = minimize(
        likelihood,
        likelihood.center,
        jac=True,
        method="L-BFGS-B",
        bounds=likelihood.bounds,
        options={"maxiter": 25, "ftol": 1e-4},
    )
    # Rounding errors of the iterations, which depend on the processor, must not matter.
    return _covariance(np.round(found.x, DECIMALS), len(parts))


def _median_distance(distances: Matrix) -> float:
    some = distances[distances > 1e-6]
    return float(np.median(some)) if some.size else 1.0


def _covariance(x: Numbers, parts: int) -> Covariance:
    # Unconstrained coordinates; the prior determines their sum.
    weights = np.exp(x[parts : 2 * parts])
    return Covariance(np.exp(x[:parts]), weights / weights.sum(), math.exp(x[-1]))


@dataclass(eq=False)
class Likelihood:
    """Negative log posterior density of a covariance, and its gradient.

    Coordinates: logarithms of the lengths, the unnormalized weights and the noise.
    """

    distances: list[Matrix]
    values: Numbers
    counts: Numbers
    scatter: float
    log_lengths: Numbers

    def __post_init__(self) -> None:
        parts = len(self.distances)
        self._total = float(self.counts.sum())
        self.center = np.concatenate([self.log_lengths, np.zeros(parts), [math.log(0.05)]])
        self._spread = np.concatenate([np.ones(2 * parts), [1.5]])
        low, high = self.center - 5.0, self.center + 5.0
        low[-1], high[-1] = math.log(LEAST_NOISE), math.log(100.0)
        self.bounds = list(zip(low, high, strict=True))

    def __call__(self, x: Numbers) -> tuple[float, Numbers]:
        parts, total = len(self.distances), self._total
        covariance = _covariance(x, parts)
        kernels: list[Matrix] = []
        slopes: list[Matrix] = []
        for distance, length in zip(self.distances, covariance.lengths, strict=True):
            # Not by `_matern`: the slope shares the exponential, the most expensive part.
            u = (math.sqrt(5.0) / length) * distance
            falling = np.exp(-u)
            third = u * u / 3.0
            kernels.append((1.0 + u + third) * falling)
            slopes.append(third * (1.0 + u) * falling)
        noise = covariance.noise
        matrix = sum(w * k for w, k in zip(covariance.weights, kernels, strict=True))
        matrix = np.asarray(matrix)
        signal_part = matrix.copy()
        matrix[np.diag_indices(len(matrix))] += noise / self.counts
        factor = factorize(matrix)
        inverse = cho_solve((factor, True), np.eye(len(matrix)), check_finite=False)
        weights = inverse @ self.values
        squares = float(self.values @ weights)
        signal = signal_variance(squares, self.scatter, noise, total)
        value = 0.5 * total * math.log(signal) + float(np.log(np.diag(factor)).sum())
        # The scatter of repeated observations depends on the noise only.
        value += 0.5 * (total - len(self.counts)) * math.log(noise)
        off = (x - self.center) / self._spread
        value += 0.5 * float(off @ off)

        # d value = 1/2 trace(pull d matrix), except for the noise's part in the scatter.
        share = total / (total + 1.0) / signal
        pull = inverse - share * np.outer(weights, weights)
        gradient = off / self._spread
        for part, (weight, kernel, slope) in enumerate(
            zip(covariance.weights, kernels, slopes, strict=True)
        ):
            gradient[part] += 0.5 * weight * float(np.vdot(pull, slope))
            gradient[parts + part] += 0.5 * weight * float(np.vdot(pull, kernel - signal_part))
        gradient[-1] += 0.5 * noise * float((np.diag(pull) / self.counts).sum())
        gradient[-1] += 0.5 * (total - len(self.counts))
        gradient[-1] -= 0.5 * share * self.scatter / noise
        return value, gradient
