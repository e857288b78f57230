"""What the search predicts of graphs: a Gaussian process over their descriptions.

    value(graph) = mean + f(graph) + noise / sqrt(observations of that graph)

f has the covariance sum_p w_p matern52(distance_p / length_p) over the parts p of a description
(Rasmussen and Williams 2006, chapters 2 and 5). The sum is positive definite by construction,
and the noise, never below ``LEAST_NOISE`` of the signal, keeps its factorisation sound: no jitter
is tried, nothing is dropped. Equal graphs are one point with the mean of their observations and
the noise of that mean, which is exact (Binois et al. 2018), and their scatter tells the noise.

Up to ``EXACT`` different graphs the process is exact: the factor grows by a row for each new
graph. Above, it is projected on ``EXACT`` of them (FITC: Snelson and Ghahramani 2006): still every
observation counts, and memory stays what it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.morphism.surrogate.graph_description import PARTS, SIZE, Vector

Matrix = NDArray[np.float64]
Numbers = NDArray[np.float64]
Rows = NDArray[np.float32]
"""Descriptions, (points, SIZE), relative to the first observed one."""

Vectors = Sequence[Vector] | Vector
"""Descriptions, (graphs, SIZE)."""

EXACT = 2048
"""Different graphs up to which the process is exact."""
LEARNED_FROM = 384
"""Different graphs, at most, by which the covariance is learned; all count in predictions."""
RELEARN = 1.25
"""How many times as many graphs there are when the covariance is learned again."""
USUAL_DEVIATION = 0.05
"""The deviation of objective values, as long as none or equal ones were observed."""
LEAST_NOISE = 1e-4
"""Variance of a single observation's noise, at least, over the signal's."""
_CHUNK = 1024


class SurrogateError(AIPerfError):
    """The process could not be computed."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """The observations of one graph."""

    count: int
    mean: float
    scatter: float
    """Sum of squared deviations from the mean."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Repeats:
        """Return those of ``values``. Raises ValueError without one, or if one is not finite."""
        if not values or not all(map(math.isfinite, values)):
            raise ValueError(f"observations must be finite numbers, got {list(values)[:5]}")
        mean = math.fsum(values) / len(values)
        return cls(len(values), mean, math.fsum((value - mean) ** 2 for value in values))


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is predicted of some graphs, as objective values; (graphs,) each."""

    mean: Numbers
    deviation: Numbers
    """Deviations of the objective values themselves, without the noise of observing them."""


@dataclass(frozen=True, slots=True)
class Covariance:
    """The learned covariance of standardised objective values, up to the signal's variance."""

    lengths: Numbers
    """Length scales, one a part, (parts,)."""
    weights: Numbers
    """Shares of the variance, one a part, (parts,); their sum is 1."""
    noise: float
    """Variance of a single observation's noise, over the signal's."""

    def between(self, left: Rows, right: Rows) -> Matrix:
        """Return the covariances, (left, right)."""
        total = np.zeros((len(left), len(right)))
        for part, length, weight in zip(PARTS.values(), self.lengths, self.weights, strict=True):
            total += weight * _matern(_distances(left[:, part], right[:, part]) / length)
        return total


def _distances(first: Rows, second: Rows) -> Matrix:
    """Return the Euclidean distances, (first, second)."""
    # Squares of near points nearly cancel: float32 would leave no digit of the distance.
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


class _Points:
    """Descriptions in rows that grow in place."""

    def __init__(self) -> None:
        self._rows = np.zeros((64, SIZE), np.float32)
        self._origin: Vector = np.zeros(SIZE, np.float32)
        self.count = 0

    @property
    def rows(self) -> Rows:
        return self._rows[: self.count]

    def relative(self, vectors: Vectors) -> Rows:
        """Return descriptions, (vectors, SIZE), as distances are taken from them.

        Near the origin squares do not cancel each other's digits.
        """
        rows: Rows = np.asarray(vectors, np.float32).reshape(-1, SIZE) - self._origin
        return rows

    def add(self, vectors: Vectors) -> None:
        if not self.count:
            self._origin = vectors[0].copy()
        needed = self.count + len(vectors)
        if needed > len(self._rows):
            grown = np.zeros((max(needed, 2 * len(self._rows)), SIZE), np.float32)
            grown[: self.count] = self.rows
            self._rows = grown
        self._rows[self.count : needed] = self.relative(vectors)
        self.count = needed

    def vector(self, row: int) -> Vector:
        """Return the description of a point, absolute again."""
        vector: Vector = self._rows[row] + self._origin
        return vector


@dataclass(frozen=True, slots=True)
class _Data:
    """What was observed of the points, (points,) each."""

    points: Rows
    counts: Numbers
    means: Numbers


_NOTHING = _Data(np.zeros((0, SIZE), np.float32), np.zeros(0), np.zeros(0))


Predict = Callable[[Rows], tuple[Numbers, Numbers]]
"""Mean and variance of points, (points,) each."""


class _Posterior(Protocol):
    """The process given the observations, in units of the signal's standard deviation."""

    def fit(self, data: _Data, first: int) -> None:
        """Take the observations, of which those of points before ``first`` are as they were."""
        ...

    def regress(self, mean: float, scale: float) -> float:
        """Standardise what was observed; return its squared length in the process's metric."""
        ...

    def expecting(self, pending: Rows) -> Predict:
        """Return what predicts, with ``pending`` as if observed with what is predicted of them."""
        ...


class _Exact:
    """The exact process: a Cholesky factor that grows by rows."""

    def __init__(self, covariance: Covariance) -> None:
        self._covariance = covariance
        self._between = np.zeros((64, 64))
        """Covariances of the points: the lower triangle, without noise."""
        self._factor = np.zeros((64, 64))
        self._data = _NOTHING
        self._weights: Numbers = np.zeros(0)

    @property
    def factor(self) -> Matrix:
        """The lower Cholesky factor, (points, points)."""
        size = len(self._data.points)
        return self._factor[:size, :size]

    @property
    def weights(self) -> Numbers:
        return self._weights

    def fit(self, data: _Data, first: int) -> None:
        points, known, size = data.points, len(self._data.points), len(data.points)
        if size > len(self._factor):
            self._factor = _enlarged(self._factor, size)
            self._between = _enlarged(self._between, size)
        between, factor = self._between[:size, :size], self._factor[:size, :size]
        between[known:] = self._covariance.between(points[known:], points)
        # A row of the factor depends on those above it alone: what is before `first` stands.
        corner = between[first:, first:].copy()
        corner[np.diag_indices(len(corner))] += self._covariance.noise / data.counts[first:]
        if first:
            rows = _solve(factor[:first, :first], between[first:, :first].T).T
            factor[first:, :first] = rows
            corner -= rows @ rows.T
        factor[first:, first:] = _cholesky(corner)
        self._data = data

    def regress(self, mean: float, scale: float) -> float:
        # The factor has nothing of mean and scale, so that these may move with every observation.
        white = _solve(self.factor, (self._data.means - mean) / scale)
        self._weights = solve_triangular(self.factor.T, white, lower=False, check_finite=False)
        return float(white @ white)

    def expecting(self, pending: Rows) -> Predict:
        between, factor, data = self._covariance.between, self.factor, self._data
        seen = _solve(factor, between(data.points, pending))
        corner = between(pending, pending) - seen.T @ seen
        corner[np.diag_indices(len(pending))] += self._covariance.noise
        corner = _cholesky(corner) if len(pending) else corner

        def predict(points: Rows) -> tuple[Numbers, Numbers]:
            across = between(points, data.points)
            white = _solve(factor, across.T)
            variance = 1.0 - np.square(white).sum(axis=0)
            if len(pending):
                rest = _solve(corner, between(pending, points) - seen.T @ white)
                variance -= np.square(rest).sum(axis=0)
            return across @ self._weights, variance

        return predict


def _enlarged(square: Matrix, least: int) -> Matrix:
    grown = np.zeros((max(least, 2 * len(square)),) * 2)
    grown[: len(square), : len(square)] = square
    return grown


class _Projected:
    """The process projected on some of its points, with sums over all of them, in fixed memory.

    What the basis does not explain of a point is noise of this point alone.
    """

    def __init__(self, covariance: Covariance, basis: Rows) -> None:
        self._covariance = covariance
        self._basis = basis
        own = covariance.between(basis, basis)
        # Graphs that differ by one morphism nearly coincide; without noise the factor might fail.
        own[np.diag_indices(len(basis))] += LEAST_NOISE
        self._whitener = _cholesky(own)
        self._moment = np.zeros_like(own)
        """Sum over the points of precision x feature x feature, (basis, basis)."""
        self._sum, self._total = np.zeros((2, len(basis)))
        """Sums over the points of precision x feature x value, and of precision x feature,
        (basis,)."""
        self._data = _NOTHING
        self._precisions = np.zeros(0)
        """The precision of each point, (points,)."""
        self._factor: Matrix = own
        self._weights: Numbers = np.zeros(len(basis))

    def _features(self, points: Rows, counts: Numbers) -> tuple[Matrix, Numbers]:
        """Return features, (basis, points), and precisions, (points,), of observed points."""
        features = _solve(self._whitener, self._covariance.between(self._basis, points))
        unexplained = np.maximum(1.0 - np.square(features).sum(axis=0), 0.0)
        return features, 1.0 / (self._covariance.noise / counts + unexplained)

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
            # Sums get the difference alone, since they hold what was known of these points before.
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
        self._factor = _cholesky(inner)

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
            factor = _cholesky(factor @ factor.T + (more * precisions) @ more.T)

        def predict(points: Rows) -> tuple[Numbers, Numbers]:
            features, _ = self._features(points, np.ones(len(points)))
            variance = 1.0 - np.square(features).sum(axis=0)
            variance += np.square(_solve(factor, features)).sum(axis=0)
            return features.T @ self._weights, variance

        return predict


def _solve(factor: Matrix, values: Matrix) -> Matrix:
    solved: Matrix = solve_triangular(factor, values, lower=True, check_finite=False)
    return solved


def _cholesky(matrix: Matrix) -> Matrix:
    try:
        factor: Matrix = cholesky(matrix, lower=True, check_finite=False)
    except np.linalg.LinAlgError as error:
        raise SurrogateError(
            f"the covariance of {len(matrix)} graphs could not be factorised: {error}"
        ) from None
    return factor


class Surrogate:
    """The process, learning as observations arrive."""

    def __init__(self) -> None:
        self._place: dict[str, int] = {}
        """The row of each graph, in the order in which they came to be known."""
        self._repeats: list[Repeats] = []
        self._points = _Points()
        self._covariance: Covariance | None = None
        self._learned_at = 0
        self._posterior: _Posterior | None = None
        self._mean = 0.0
        self._scale = USUAL_DEVIATION
        self._signal = 1.0

    def __len__(self) -> int:
        """Return how many different graphs were observed."""
        return len(self._repeats)

    def __contains__(self, graph: str) -> bool:
        """Return whether the graph of this hash was observed."""
        return graph in self._place

    def vector(self, graph: str) -> Vector:
        """Return the description of an observed graph. Raises KeyError for another."""
        return self._points.vector(self._place[graph])

    @property
    def scale(self) -> float:
        """The deviation of the observed objective values."""
        return self._scale

    @property
    def noise(self) -> float:
        """The learned deviation of a single observation from a graph's value."""
        return self._scale * math.sqrt(self._signal * self.covariance.noise)

    @property
    def covariance(self) -> Covariance:
        """What was learned last. Raises SurrogateError before the first observation."""
        if self._covariance is None:
            raise SurrogateError("no graph has been observed")
        return self._covariance

    def learn(self, observed: Mapping[str, Repeats], description: Callable[[str], Vector]) -> None:
        """Learn all that was observed so far; what is known already costs nothing.

        Args:
            observed: by the graphs' hashes, all of them each time.
            description: of a graph that was not observed before, by its hash.

        Raises:
            SurrogateError: nothing was observed, or the numbers are beyond computing.
        """
        if not observed:
            raise SurrogateError("no graph has been observed")
        first = self._take(observed, description)
        if first == len(self):
            return
        data = _Data(
            self._points.rows,
            np.array([r.count for r in self._repeats], np.float64),
            np.array([r.mean for r in self._repeats]),
        )
        self._mean, self._scale = _standard(data.means)
        if len(self) >= RELEARN * self._learned_at:
            self._relearn(data)
        if isinstance(self._posterior, _Exact) and len(self) > EXACT:
            self._posterior = None
        if self._posterior is None:
            self._posterior = self._begin(data)
            first = 0
        self._posterior.fit(data, first)
        squares = self._posterior.regress(self._mean, self._scale)
        scatter = sum(r.scatter for r in self._repeats) / self._scale**2
        self._signal = _signal(squares, scatter, self.covariance.noise, float(data.counts.sum()))

    def _take(self, observed: Mapping[str, Repeats], description: Callable[[str], Vector]) -> int:
        """Take note of what is new; return the first row of which there is something new."""
        first = len(self)
        new: list[str] = []
        for graph, repeats in observed.items():
            place = self._place.get(graph)
            if place is None:
                new.append(graph)
            elif repeats != self._repeats[place]:
                self._repeats[place] = repeats
                first = min(first, place)
        if new:
            self._points.add([description(graph) for graph in new])
            for graph in new:
                self._place[graph] = len(self._repeats)
                self._repeats.append(observed[graph])
        return first

    def _relearn(self, data: _Data) -> None:
        rows = _sample(data.means, LEARNED_FROM)
        self._covariance = _learned(
            data.points[rows],
            (data.means[rows] - self._mean) / self._scale,
            data.counts[rows],
            sum(self._repeats[row].scatter for row in rows) / self._scale**2,
            self._covariance,
        )
        self._learned_at = len(self)
        self._posterior = None

    def _begin(self, data: _Data) -> _Posterior:
        if len(self) <= EXACT:
            return _Exact(self.covariance)
        return _Projected(self.covariance, data.points[_sample(data.means, EXACT)])

    def expecting(self, pending: Vectors) -> Callable[[Vectors], Prediction]:
        """Return what predicts, knowing that some graphs are in training.

        They count as observed with just what is predicted of them. That leaves the mean as it is
        and lowers the deviation near them (GP-BUCB, Desautels et al. 2014), so that searchers
        which know of each other's proposals look elsewhere.

        Args:
            pending: descriptions of graphs in training, (graphs, SIZE).

        Raises:
            SurrogateError: no graph has been observed.
        """
        if self._posterior is None:
            raise SurrogateError("no graph has been observed")
        posterior = self._posterior.expecting(self._points.relative(pending))

        def predict(vectors: Vectors) -> Prediction:
            mean, variance = posterior(self._points.relative(vectors))
            deviation = np.sqrt(self._signal * np.maximum(variance, 0.0))
            return Prediction(self._mean + self._scale * mean, self._scale * deviation)

        return predict

    def predict(self, vectors: Vectors) -> Prediction:
        """Return what is predicted of graphs with these descriptions, (graphs, SIZE).

        Raises:
            SurrogateError: no graph has been observed.
        """
        return self.expecting(())(vectors)

    def leave_one_out(self) -> dict[str, float]:
        """Return what would be predicted of each observed graph if it were not observed.

        By the closed form of Rasmussen and Williams, equation 5.12.

        Raises:
            SurrogateError: nothing was observed, or more than ``EXACT`` graphs were.
        """
        if not isinstance(self._posterior, _Exact):
            raise SurrogateError(f"leave-one-out needs 1 to {EXACT} graphs, not {len(self)}")
        inverse = _solve(self._posterior.factor, np.eye(len(self)))
        means = np.array([r.mean for r in self._repeats])
        # Its columns' squares add up to the inverse covariance's diagonal: no more is needed.
        pull = self._scale * self._posterior.weights / np.square(inverse).sum(axis=0)
        return dict(zip(self._place, (means - pull).tolist(), strict=True))


def _standard(means: Numbers) -> tuple[float, float]:
    """Return mean and deviation of values, the latter as if one more had the usual one."""
    mean = float(means.mean())
    squares = float(np.square(means - mean).sum()) + USUAL_DEVIATION**2
    return mean, math.sqrt(squares / (len(means) + 1))


def _sample(means: Numbers, size: int) -> NDArray[np.intp]:
    """Return at most ``size`` rows: the best half, and an even sample of the others."""
    if len(means) <= size:
        return np.arange(len(means))
    # Candidates grow from the best, so these must be known well; the others show the rest.
    order = np.argsort(-means, kind="stable")
    best, others = order[: size // 2], np.sort(order[size // 2 :])
    even = np.linspace(0, len(others) - 1, size - len(best)).round().astype(np.intp)
    return np.sort(np.concatenate([best, others[even]]))


def _signal(squares: float, scatter: float, noise: float, observations: float) -> float:
    """Return the signal's variance: its estimate, with one observation of variance 1 before."""
    return (squares + scatter / noise + 1.0) / (observations + 1.0)


def _learned(
    points: Rows, values: Numbers, counts: Numbers, scatter: float, last: Covariance | None
) -> Covariance:
    """Return the covariance with the highest posterior density, the signal's variance profiled.

    Priors, on logarithms: a length is near 1.6 median distances of its part, parts weigh the
    same, the noise is near 5 % of the signal. With few points they decide, with many they do not.
    """
    parts = list(PARTS.values())
    distances = [_distances(points[:, part], points[:, part]) for part in parts]
    usual = np.array([_median_distance(distance) for distance in distances])
    likelihood = _Likelihood(distances, values, counts, scatter, np.log(usual) + 0.5)
    begin = likelihood.centre if last is None else _coordinates(last)
    found = minimize(
        likelihood,
        begin,
        jac=True,
        method="L-BFGS-B",
        bounds=likelihood.bounds,
        # Not to the end, since the next learning begins where this one stops.
        options={"maxiter": 25, "ftol": 1e-4},
    )
    return _covariance(found.x, len(parts))


def _median_distance(distances: Matrix) -> float:
    some = distances[distances > 1e-6]
    return float(np.median(some)) if some.size else 1.0


def _coordinates(covariance: Covariance) -> Numbers:
    return np.concatenate(
        [np.log(covariance.lengths), np.log(covariance.weights), [math.log(covariance.noise)]]
    )


def _covariance(x: Numbers, parts: int) -> Covariance:
    # Free coordinates, so that the minimiser needs no constraint; the prior holds their sum.
    weights = np.exp(x[parts : 2 * parts])
    return Covariance(np.exp(x[:parts]), weights / weights.sum(), math.exp(x[-1]))


class _Likelihood:
    """Minus the logarithm of the posterior density of a covariance, and its gradient.

    Coordinates: logarithms of the lengths, of the unnormalised weights, and of the noise.
    """

    def __init__(
        self,
        distances: list[Matrix],
        values: Numbers,
        counts: Numbers,
        scatter: float,
        log_lengths: Numbers,
    ) -> None:
        parts = len(distances)
        self._distances = distances
        self._values = values
        self._counts = counts
        self._scatter = scatter
        self._total = float(counts.sum())
        self.centre = np.concatenate([log_lengths, np.zeros(parts), [math.log(0.05)]])
        self._spread = np.concatenate([np.ones(2 * parts), [1.5]])
        low, high = self.centre - 5.0, self.centre + 5.0
        low[-1], high[-1] = math.log(LEAST_NOISE), math.log(100.0)
        self.bounds = list(zip(low, high, strict=True))

    def __call__(self, x: Numbers) -> tuple[float, Numbers]:
        parts, total = len(self._distances), self._total
        covariance = _covariance(x, parts)
        kernels: list[Matrix] = []
        slopes: list[Matrix] = []
        for distance, length in zip(self._distances, covariance.lengths, strict=True):
            # Not by `_matern`, since the slope needs the same exponential, the dearest part.
            u = (math.sqrt(5.0) / length) * distance
            falling = np.exp(-u)
            third = u * u / 3.0
            kernels.append((1.0 + u + third) * falling)
            slopes.append(third * (1.0 + u) * falling)
        noise = covariance.noise
        matrix = sum(w * k for w, k in zip(covariance.weights, kernels, strict=True))
        matrix = np.asarray(matrix)
        signal_part = matrix.copy()
        matrix[np.diag_indices(len(matrix))] += noise / self._counts
        factor = _cholesky(matrix)
        inverse = cho_solve((factor, True), np.eye(len(matrix)), check_finite=False)
        weights = inverse @ self._values
        squares = float(self._values @ weights)
        signal = _signal(squares, self._scatter, noise, total)
        value = 0.5 * total * math.log(signal) + float(np.log(np.diag(factor)).sum())
        # What repeats say beyond their mean depends on the noise alone.
        value += 0.5 * (total - len(self._counts)) * math.log(noise)
        off = (x - self.centre) / self._spread
        value += 0.5 * float(off @ off)

        # d value = 1/2 trace(pull d matrix), but for the noise's part in the scatter.
        share = total / (total + 1.0) / signal
        pull = inverse - share * np.outer(weights, weights)
        gradient = off / self._spread
        for part, (weight, kernel, slope) in enumerate(
            zip(covariance.weights, kernels, slopes, strict=True)
        ):
            gradient[part] += 0.5 * weight * float(np.vdot(pull, slope))
            gradient[parts + part] += 0.5 * weight * float(np.vdot(pull, kernel - signal_part))
        gradient[-1] += 0.5 * noise * float((np.diag(pull) / self._counts).sum())
        gradient[-1] += 0.5 * (total - len(self._counts))
        gradient[-1] -= 0.5 * share * self._scatter / noise
        return value, gradient
