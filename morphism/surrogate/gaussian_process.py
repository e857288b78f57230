"""The surrogate of the search: a Gaussian process over the descriptions of graphs.

    value(graph) = mean + f(graph) + noise / sqrt(observations of that graph)

f has the covariance sum_p w_p matern52(distance_p / length_p) over the parts p of a description
(Rasmussen and Williams 2006, chapters 2 and 5). The sum is positive definite by construction, and
noise of at least ``LEAST_NOISE`` of the signal keeps the factorization stable without jitter. Equal
graphs are one point with the mean of their observations and the noise of that mean, which is exact
(Binois et al. 2018); their scatter determines the noise.

Up to ``EXACT`` different graphs, the process is exact, and the factor grows by a row for each new
graph. Beyond, it is projected on ``EXACT`` of them (FITC: Snelson and Ghahramani 2006), which uses
all observations in constant memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, solve_triangular

from aiperf_hpc.morphism.surrogate.covariance import (
    LEAST_NOISE,
    Covariance,
    Matrix,
    Numbers,
    Rows,
    SurrogateError,
    factorize,
    learned_covariance,
    signal_variance,
)
from aiperf_hpc.morphism.surrogate.graph_description import SIZE, Vector

Vectors = Sequence[Vector] | Vector
"""Descriptions, (graphs, SIZE)."""

EXACT = 2048
"""Maximum number of different graphs of the exact process."""
LEARNED_FROM = 384
"""Maximum number of different graphs to estimate the covariance; predictions use all."""
RELEARN = 1.25
"""Factor by which the number of graphs grows between estimates of the covariance."""
USUAL_DEVIATION = 0.05
"""Standard deviation of objective values while none, or only equal ones, were observed."""
_CHUNK = 1024


@dataclass(frozen=True, slots=True)
class Repeats:
    """Observations of one graph."""

    count: int
    mean: float
    scatter: float
    """Sum of squared deviations from the mean."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Repeats:
        """Summarize ``values``. Raises ValueError if there is none, or one is not finite."""
        if not values or not all(map(math.isfinite, values)):
            raise ValueError(f"observations must be finite numbers, got {list(values)[:5]}")
        mean = math.fsum(values) / len(values)
        return cls(len(values), mean, math.fsum((value - mean) ** 2 for value in values))


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted objective values of graphs; (graphs,) each."""

    mean: Numbers
    deviation: Numbers
    """Standard deviations of the objective values, without observation noise."""


@dataclass(frozen=True, slots=True)
class _Data:
    """Observations of the points, (points,) each."""

    points: Rows
    counts: Numbers
    means: Numbers


_NOTHING = _Data(np.zeros((0, SIZE), np.float32), np.zeros(0), np.zeros(0))


Predict = Callable[[Rows], tuple[Numbers, Numbers]]
"""Mean and variance of points, (points,) each."""


class _Exact:
    """The exact process: a Cholesky factor that grows by rows."""

    def __init__(self, covariance: Covariance) -> None:
        self.covariance = covariance
        self._between: Matrix = np.zeros((0, 0))
        """Covariances of the points: the lower triangle, without noise."""
        self.factor: Matrix = np.zeros((0, 0))
        """The lower Cholesky factor, (points, points)."""
        self.weights: Numbers = np.zeros(0)
        self._data = _NOTHING

    def fit(self, data: _Data, first: int) -> None:
        """Update the observations; those of points before ``first`` are unchanged."""
        points, known, size = data.points, len(self._data.points), len(data.points)
        between, factor = np.zeros((2, size, size))
        between[:known, :known] = self._between
        between[known:] = self.covariance.between(points[known:], points)
        # A row of the factor depends only on the rows above: those before `first` stay valid.
        factor[:first, :first] = self.factor[:first, :first]
        corner = between[first:, first:].copy()
        corner[np.diag_indices(len(corner))] += self.covariance.noise / data.counts[first:]
        if first:
            rows = _solve(factor[:first, :first], between[first:, :first].T).T
            factor[first:, :first] = rows
            corner -= rows @ rows.T
        factor[first:, first:] = factorize(corner)
        self._between, self.factor, self._data = between, factor, data

    def regress(self, mean: float, scale: float) -> float:
        """Standardize the observations; return their squared length in the process's metric."""
        # The factor is independent of mean and scale, which change with every observation.
        white = _solve(self.factor, (self._data.means - mean) / scale)
        lower = np.asfortranarray(self.factor)
        self.weights = solve_triangular(lower, white, trans=1, lower=True, check_finite=False)
        return float(white @ white)

    def expecting(self, pending: Rows) -> Predict:
        """Return the predictor, with ``pending`` graphs observed at their predictions."""
        between, factor, data = self.covariance.between, self.factor, self._data
        seen = _solve(factor, between(data.points, pending))
        corner = between(pending, pending) - seen.T @ seen
        corner[np.diag_indices(len(pending))] += self.covariance.noise
        corner = factorize(corner) if len(pending) else corner

        def predict(points: Rows) -> tuple[Numbers, Numbers]:
            across = between(points, data.points)
            white = _solve(factor, across.T)
            variance = 1.0 - np.square(white).sum(axis=0)
            if len(pending):
                rest = _solve(corner, between(pending, points) - seen.T @ white)
                variance -= np.square(rest).sum(axis=0)
            return across @ self.weights, variance

        return predict


class _Projected:
    """The process projected on a basis of its points (FITC), in constant memory.

    The variance of a point that the basis does not explain is treated as independent noise.
    """

    def __init__(self, covariance: Covariance, basis: Rows) -> None:
        self.covariance = covariance
        self._basis = basis
        own = covariance.between(basis, basis)
        # Graphs that differ by one morphism nearly coincide, so noise keeps the factor stable.
        own[np.diag_indices(len(basis))] += LEAST_NOISE
        self._whitener = factorize(own)
        self._moment = np.zeros_like(own)
        """Sum of precision x feature x feature over the points, (basis, basis)."""
        self._sum, self._total = np.zeros((2, len(basis)))
        """Sums of precision x feature x value, and of precision x feature, over the points,
        (basis,)."""
        self._data = _NOTHING
        self._precisions = np.zeros(0)
        """Precision of each point, (points,)."""
        self._factor: Matrix = own
        self._weights: Numbers = np.zeros(len(basis))

    def _features(self, points: Rows, counts: Numbers) -> tuple[Matrix, Numbers]:
        """Return features, (basis, points), and precisions, (points,), of observed points."""
        features = _solve(self._whitener, self.covariance.between(self._basis, points))
        unexplained = np.maximum(1.0 - np.square(features).sum(axis=0), 0.0)
        return features, 1.0 / (self.covariance.noise / counts + unexplained)

    def fit(self, data: _Data, first: int) -> None:
        last, known = self._data, len(self._data.counts)
        before, means = np.zeros((2, len(data.counts)))
        before[:known], means[:known] = self._precisions, last.means
        changed = (data.counts[:known] != last.counts) | (data.means[:known] != last.means)
        rows = np.concatenate(
            [first + np.flatnonzero(changed[first:]), np.arange(known, len(means))]
        )
        precisions = before.copy()
        for begin in range(0, len(rows), _CHUNK):
            some = rows[begin : begin + _CHUNK]
            features, precisions[some] = self._features(data.points[some], data.counts[some])
            # Add the difference, since the sums contain the previous observations of these points.
            more = precisions[some] - before[some]
            self._moment += (features * more) @ features.T
            self._total += features @ more
            self._sum += features @ (
                precisions[some] * data.means[some] - before[some] * means[some]
            )
        self._data = data
        self._precisions = precisions
        inner = self._moment.copy()
        inner[np.diag_indices(len(inner))] += 1.0
        self._factor = factorize(inner)

    def regress(self, mean: float, scale: float) -> float:
        weighted = (self._sum - mean * self._total) / scale
        self._weights = cho_solve((self._factor, True), weighted)
        # By Woodbury's identity: the covariance of all points, (points, points), is never formed.
        squares = np.square((self._data.means - mean) / scale)
        return float(self._precisions @ squares) - float(self._weights @ weighted)

    def expecting(self, pending: Rows) -> Predict:
        factor = self._factor
        if len(pending):
            more, precisions = self._features(pending, np.ones(len(pending)))
            factor = factorize(factor @ factor.T + (more * precisions) @ more.T)

        def predict(points: Rows) -> tuple[Numbers, Numbers]:
            features, _ = self._features(points, np.ones(len(points)))
            variance = 1.0 - np.square(features).sum(axis=0)
            variance += np.square(_solve(factor, features)).sum(axis=0)
            return features.T @ self._weights, variance

        return predict


def _solve(factor: Matrix, values: Matrix) -> Matrix:
    solved: Matrix = solve_triangular(factor, values, lower=True, check_finite=False)
    return solved


class Surrogate:
    """The Gaussian process, updated as observations arrive."""

    def __init__(self) -> None:
        self._row: dict[str, int] = {}
        """Row of each graph: ordered as for the last estimate of the covariance, then new ones."""
        self._repeats: list[Repeats] = []
        self._origin: Vector = np.zeros(SIZE, np.float32)
        """Description of the first row; offsets from it avoid cancellation."""
        self._vectors: Rows = np.zeros((0, SIZE), np.float32)
        """Descriptions of all rows, (graphs, SIZE)."""
        self._learned_at = 0
        self._posterior: _Exact | _Projected | None = None
        self._mean = 0.0
        self.scale = USUAL_DEVIATION
        """Standard deviation of the observed objective values."""
        self._signal = 1.0

    def __len__(self) -> int:
        """Return the number of different observed graphs."""
        return len(self._repeats)

    def __contains__(self, graph: str) -> bool:
        """Return whether the graph of this hash was observed."""
        return graph in self._row

    def vector(self, graph: str) -> Vector:
        """Return the description of an observed graph. Raises KeyError if it was not observed."""
        vector: Vector = self._vectors[self._row[graph]]
        return vector

    def vectors(self) -> dict[str, Vector]:
        """Return the descriptions of all observed graphs, by hash."""
        return {graph: self.vector(graph) for graph in self._row}

    def learn(self, observed: Mapping[str, Repeats], description: Callable[[str], Vector]) -> bool:
        """Update the process with all observations; known ones cost nothing.

        Apart from rounding errors, the process depends only on these observations and on those
        from which its covariance was last estimated, so that a choice can be repeated.

        Args:
            observed: all observations by the graphs' hashes.
            description: returns the description of a new graph by its hash.

        Returns:
            Whether the covariance was estimated.

        Raises:
            SurrogateError: there are no observations, or the computation failed.
        """
        if not observed:
            raise SurrogateError("no graph has been observed")
        first = self._take(observed, description)
        if first == len(self) and self._posterior is not None:
            return False
        # None until the end, so that a failure has no effect on later results.
        posterior, self._posterior = self._posterior, None
        if len(self) >= RELEARN * self._learned_at or self._learned_at <= EXACT < len(self):
            posterior = None
        again = posterior is None
        if again:
            self._arrange(observed)
        data = _Data(
            self._relative(self._vectors),
            np.array([r.count for r in self._repeats], np.float64),
            np.array([r.mean for r in self._repeats]),
        )
        self._mean, self.scale = _standard(data.means)
        if posterior is None:
            posterior = self._begin(data)
            first = 0
        posterior.fit(data, first)
        squares = posterior.regress(self._mean, self.scale)
        scatter = sum(r.scatter for r in self._repeats) / self.scale**2
        self._signal = signal_variance(
            squares, scatter, posterior.covariance.noise, float(data.counts.sum())
        )
        self._posterior = posterior
        return again

    def _take(self, observed: Mapping[str, Repeats], description: Callable[[str], Vector]) -> int:
        """Add new observations; return the first changed row."""
        first = len(self)
        new: list[str] = []
        for graph, repeats in observed.items():
            row = self._row.get(graph)
            if row is None:
                new.append(graph)
            elif repeats != self._repeats[row]:
                self._repeats[row] = repeats
                first = min(first, row)
        if new:
            vectors = np.asarray([description(graph) for graph in new], np.float32)
            self._vectors = np.concatenate([self._vectors, vectors])
            for graph in new:
                self._row[graph] = len(self._repeats)
                self._repeats.append(observed[graph])
        return first

    def _arrange(self, observed: Mapping[str, Repeats]) -> None:
        """Keep only these observations, in their order."""
        rows = [self._row[graph] for graph in observed]
        self._vectors, self._origin = self._vectors[rows], self._vectors[rows[0]].copy()
        self._repeats = list(observed.values())
        self._row = {graph: row for row, graph in enumerate(observed)}

    def _relative(self, vectors: Vectors) -> Rows:
        """Return descriptions prepared for distances, (graphs, SIZE)."""
        rows: Rows = np.asarray(vectors, np.float32).reshape(-1, SIZE) - self._origin
        return rows

    def _begin(self, data: _Data) -> _Exact | _Projected:
        """Estimate the covariance; return the process without observations."""
        rows = _sample(data.means, LEARNED_FROM)
        covariance = learned_covariance(
            data.points[rows],
            (data.means[rows] - self._mean) / self.scale,
            data.counts[rows],
            sum(self._repeats[row].scatter for row in rows) / self.scale**2,
        )
        self._learned_at = len(self)
        if len(self) <= EXACT:
            return _Exact(covariance)
        return _Projected(covariance, data.points[_sample(data.means, EXACT)])

    def expecting(self, pending: Vectors) -> Callable[[Vectors], Prediction]:
        """Return the predictor, given pending graphs.

        Pending graphs count as observed at their predictions. This leaves the mean unchanged and
        lowers the deviation near them (GP-BUCB, Desautels et al. 2014), so that searchers avoid
        each other's proposals.

        Args:
            pending: descriptions of pending graphs, (graphs, SIZE).

        Raises:
            SurrogateError: no graph has been observed.
        """
        if self._posterior is None:
            raise SurrogateError("no graph has been observed")
        posterior = self._posterior.expecting(self._relative(pending))

        def predict(vectors: Vectors) -> Prediction:
            mean, variance = posterior(self._relative(vectors))
            deviation = np.sqrt(self._signal * np.maximum(variance, 0.0))
            return Prediction(self._mean + self.scale * mean, self.scale * deviation)

        return predict

    def leave_one_out(self) -> dict[str, float]:
        """Return the leave-one-out predictions of all observed graphs.

        They use the closed form of Rasmussen and Williams, equation 5.12.

        Raises:
            SurrogateError: there are no observations, or more than ``EXACT`` graphs.
        """
        if not isinstance(self._posterior, _Exact):
            raise SurrogateError(f"leave-one-out needs 1 to {EXACT} graphs, not {len(self)}")
        inverse = _solve(self._posterior.factor, np.eye(len(self)))
        means = np.array([r.mean for r in self._repeats])
        # The squares of its columns sum to the diagonal of the inverse covariance.
        pull = self.scale * self._posterior.weights / np.square(inverse).sum(axis=0)
        return dict(zip(self._row, (means - pull).tolist(), strict=True))


def _standard(means: Numbers) -> tuple[float, float]:
    """Return mean and standard deviation of values, the latter with a prior worth one value."""
    mean = float(means.mean())
    squares = float(np.square(means - mean).sum()) + USUAL_DEVIATION**2
    return mean, math.sqrt(squares / (len(means) + 1))


def _sample(means: Numbers, size: int) -> NDArray[np.intp]:
    """Return at most ``size`` rows: the best half, and an even sample of the others."""
    if len(means) <= size:
        return np.arange(len(means))
    # Candidates grow from the best graphs, which must be modeled well.
    order = np.argsort(-means, kind="stable")
    best, others = order[: size // 2], np.sort(order[size // 2 :])
    even = np.linspace(0, len(others) - 1, size - len(best)).round().astype(np.intp)
    return np.sort(np.concatenate([best, others[even]]))
