"""The process against formulas written out with a dense solver, and scikit-learn's covariance."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import approx_fprime
from scipy.stats import multivariate_normal, spearmanr
from sklearn.gaussian_process.kernels import Matern

from aiperf_hpc.morphism.surrogate import gaussian_process as module
from aiperf_hpc.morphism.surrogate.covariance import (
    Covariance,
    Likelihood,
    SurrogateError,
    factorize,
    learned_covariance,
)
from aiperf_hpc.morphism.surrogate.gaussian_process import Repeats, Surrogate
from aiperf_hpc.morphism.surrogate.graph_description import PARTS, SIZE, STAGE, Vector

Numbers = NDArray[np.float64]

COVARIANCE = Covariance(np.array([4.0, 9.0, 30.0]), np.array([0.5, 0.3, 0.2]), 0.05)


def vectors(count: int, seed: int = 0) -> list[Vector]:
    """Descriptions that no graph has, with numbers such as graphs' have."""
    made = np.random.default_rng(seed).poisson(2.0, (count, SIZE)).astype(np.float32)
    made[:, STAGE.stop :] -= 2.0
    return list(made)


def accuracy(vector: Vector) -> float:
    return 0.5 + 0.1 * math.tanh(0.3 * float(vector[:8].sum()) - 5.0)


def repeats(given: list[Vector], seed: int = 0, most: int = 1) -> dict[str, Repeats]:
    noise = np.random.default_rng(seed)
    return {
        f"g{i}": Repeats.of(
            [accuracy(v) + 0.01 * noise.normal() for _ in range(int(noise.integers(1, most + 1)))]
        )
        for i, v in enumerate(given)
    }


def lookup(given: list[Vector]) -> Callable[[str], Vector]:
    return lambda graph: given[int(graph[1:])]


def test_rounding_errors_do_not_change_the_covariance() -> None:
    given, noise = np.asarray(vectors(30)) - vectors(1)[0], np.random.default_rng(5)
    values = noise.normal(size=30)
    one, other = (
        learned_covariance(given, values * factors, np.ones(30), 0.0)
        for factors in (np.ones(30), 1 + 1e-13 * noise.normal(size=30))
    )
    assert one.lengths.tolist() == other.lengths.tolist()
    assert one.weights.tolist() == other.weights.tolist()
    assert one.noise == other.noise


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every process have one covariance."""
    monkeypatch.setattr(module, "learned_covariance", lambda *_: COVARIANCE)


def dense(rows: Numbers, by: Covariance = COVARIANCE) -> Numbers:
    """Return the covariances of descriptions by scikit-learn's Matern covariance."""
    parts = zip(PARTS.values(), by.lengths, by.weights, strict=True)
    return np.asarray(
        sum(weight * Matern(length, nu=2.5)(rows[:, part]) for part, length, weight in parts)
    )


def deviation_of(means: Numbers) -> float:
    """Return the deviation with one more, of 5 %."""
    return math.sqrt((len(means) * float(means.var()) + 0.05**2) / (len(means) + 1))


def posterior(
    seen: list[Vector], values: list[float], asked: list[Vector]
) -> tuple[Numbers, Numbers]:
    """Return mean and deviation of a process with one row for every single observation.

    ``values`` are standardised by the means of the graphs, as the surrogate does it.
    """
    everything = np.array([*seen, *asked], np.float64)
    covariance = dense(everything)
    n = len(seen)
    by_graph: dict[bytes, list[float]] = {}
    for vector, value in zip(seen, values, strict=True):
        by_graph.setdefault(vector.tobytes(), []).append(value)
    means = np.array([np.mean(v) for v in by_graph.values()])
    mean, scale = means.mean(), deviation_of(means)
    standardised = (np.array(values) - mean) / scale
    noisy = covariance[:n, :n] + COVARIANCE.noise * np.eye(n)
    weights = np.linalg.solve(noisy, standardised)
    signal = (standardised @ weights + 1.0) / (n + 1.0)
    across = covariance[n:, :n]
    variance = 1.0 - np.einsum("ij,ji->i", across, np.linalg.solve(noisy, across.T))
    return mean + scale * across @ weights, scale * np.sqrt(signal * variance)


@pytest.mark.usefixtures("fixed")
def test_what_is_predicted_is_the_posterior_of_every_single_observation() -> None:
    """Graphs that were observed several times are merged without a loss."""
    given, asked = vectors(40), vectors(10, seed=1)
    noise = np.random.default_rng(2)
    values = [[accuracy(v) + 0.02 * noise.normal() for _ in range(1 + i % 3)]
              for i, v in enumerate(given)]  # fmt: skip
    process = Surrogate()
    process.learn({f"g{i}": Repeats.of(v) for i, v in enumerate(values)}, lookup(given))
    found = process.expecting(())(asked)
    flat = [(vector, x) for vector, row in zip(given, values, strict=True) for x in row]
    mean, deviation = posterior([v for v, _ in flat], [x for _, x in flat], asked)
    np.testing.assert_allclose(found.mean, mean, atol=1e-9)
    np.testing.assert_allclose(found.deviation, deviation, rtol=1e-6)


@pytest.mark.usefixtures("fixed")
def test_learning_bit_by_bit_comes_to_the_same() -> None:
    given, asked = vectors(200), vectors(5, seed=1)
    final = repeats(given, most=3)
    at_once, in_steps = Surrogate(), Surrogate()
    at_once.learn(final, lookup(given))
    for known in (1, 2, 63, 64, 65, 130, 200):
        part = dict(list(final.items())[:known])
        # What was observed of the last one and of one in the middle changes later.
        part[f"g{known - 1}"] = part[f"g{known // 2}"] = Repeats(1, 0.1, 0.0)
        in_steps.learn(part, lookup(given))
        in_steps.learn(dict(list(final.items())[:known]), lookup(given))
    for of in ("mean", "deviation"):
        np.testing.assert_allclose(
            getattr(in_steps.expecting(())(asked), of),
            getattr(at_once.expecting(())(asked), of),
            rtol=1e-9,
        )
    assert len(in_steps) == 200


@pytest.mark.usefixtures("fixed")
def test_leaving_one_out_is_learning_without_it() -> None:
    given = vectors(30)
    observed = repeats(given, most=3)
    process = Surrogate()
    process.learn(observed, lookup(given))
    said = process.leave_one_out()
    means = np.array([r.mean for r in observed.values()])
    mean, scale = float(means.mean()), deviation_of(means)
    rows = np.array(given, np.float64)
    covariance = dense(rows)
    for i in range(0, 30, 7):
        others = [j for j in range(30) if j != i]
        noise = np.diag([COVARIANCE.noise / observed[f"g{j}"].count for j in others])
        values = [(observed[f"g{j}"].mean - mean) / scale for j in others]
        weights = np.linalg.solve(covariance[np.ix_(others, others)] + noise, values)
        assert said[f"g{i}"] == pytest.approx(mean + scale * covariance[i, others] @ weights)


@pytest.mark.usefixtures("fixed")
def test_what_is_pending_lowers_the_deviation_and_leaves_the_mean() -> None:
    given, pending, asked = vectors(30), vectors(6, seed=1), vectors(6, seed=2)
    near = [vector.copy() for vector in pending]
    for vector in near:
        vector[0] += 1.0
    process = Surrogate()
    process.learn(repeats(given), lookup(given))
    for others in (asked, near, pending):
        without, given_those = process.expecting(())(others), process.expecting(pending)(others)
        np.testing.assert_allclose(given_those.mean, without.mean, atol=1e-12)
        assert (given_those.deviation <= without.deviation + 1e-12).all()
    lowered = process.expecting(pending)(near).deviation
    assert (lowered < 0.7 * process.expecting(())(near).deviation).all()
    # The same graph many times, and one that was observed: the factorisation bears it.
    crowd = [pending[0]] * 20 + [given[0]] * 20
    assert np.isfinite(process.expecting(crowd)(crowd).deviation).all()


@pytest.mark.usefixtures("fixed")
def test_pending_counts_as_observed_with_what_is_predicted() -> None:
    given, pending, asked = vectors(25), vectors(4, seed=1), vectors(6, seed=2)
    observed = repeats(given)
    process = Surrogate()
    process.learn(observed, lookup(given))
    rows = np.array([*given, *pending, *asked], np.float64)
    covariance, n = dense(rows), len(given) + len(pending)
    noisy = covariance[:n, :n] + COVARIANCE.noise * np.eye(n)
    across = covariance[n:, :n]
    variance = 1.0 - np.einsum("ij,ji->i", across, np.linalg.solve(noisy, across.T))
    ratio = process.expecting(pending)(asked).deviation / np.sqrt(variance)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-6)


@pytest.mark.usefixtures("fixed")
def test_beyond_the_exact_process_every_observation_still_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given, asked = vectors(120), vectors(60, seed=1)
    observed = repeats(given, most=2)
    exact = Surrogate()
    exact.learn(observed, lookup(given))
    monkeypatch.setattr(module, "EXACT", 90)
    monkeypatch.setattr(module, "_CHUNK", 32)
    at_once, in_steps = Surrogate(), Surrogate()
    at_once.learn(observed, lookup(given))
    # The basis is chosen when there are more than it holds, and then stays.
    monkeypatch.setattr(module, "RELEARN", 100.0)
    for known in (50, 91, 92, 110, 120):
        in_steps.learn(dict(list(observed.items())[:known]), lookup(given))
    for process in (at_once, in_steps):
        found, true = process.expecting(())(asked), exact.expecting(())(asked)
        assert (np.abs(found.mean - true.mean) < 0.7 * true.deviation).all()
        np.testing.assert_allclose(found.deviation, true.deviation, rtol=0.15)
    one = "g7"
    changed = observed | {one: Repeats(observed[one].count + 50, 0.9, 0.0)}
    before = at_once.expecting(())([given[7]]).mean[0]
    at_once.learn(changed, lookup(given))
    assert at_once.expecting(())([given[7]]).mean[0] > before + 0.05
    assert (
        at_once.expecting(asked)(asked).deviation.max()
        < at_once.expecting(())(asked).deviation.max()
    )
    with pytest.raises(SurrogateError, match="leave-one-out needs 1 to 90 graphs, not 120"):
        at_once.leave_one_out()


def test_the_likelihood_is_that_of_every_single_observation() -> None:
    """Against the density of all observations, each a row: differences of two covariances."""
    given = vectors(12)
    values = [[0.3 * i + 0.2 * j for j in range(1 + i % 3)] for i in range(12)]
    rows = np.array(given, np.float64)
    parts = PARTS.values()
    distances = [np.linalg.norm(rows[:, None, p] - rows[None, :, p], axis=2) for p in parts]
    merged = [Repeats.of(v) for v in values]
    counts = np.array([m.count for m in merged], np.float64)
    means, scatter = np.array([m.mean for m in merged]), sum(m.scatter for m in merged)
    likelihood = Likelihood(distances, means, counts, scatter, np.array([1.0, 2.0, 3.0]))
    flat = np.concatenate(values)
    owner = np.repeat(np.arange(12), [len(v) for v in values])

    def by_rows(x: Numbers) -> float:
        weights = np.exp(x[3:6]) / np.exp(x[3:6]).sum()
        noise = float(np.exp(x[6]))
        covariance = dense(rows, Covariance(np.exp(x[:3]), weights, noise))[np.ix_(owner, owner)]
        covariance = covariance + noise * np.eye(len(flat))
        signal = (flat @ np.linalg.solve(covariance, flat) + 1.0) / (len(flat) + 1.0)
        density = multivariate_normal(cov=signal * covariance).logpdf(flat)
        # The prior of one observation on the signal, and those on the coordinates.
        off = (x - likelihood.center) / np.array([1.0] * 6 + [1.5])
        exponent = 0.5 * (flat @ np.linalg.solve(signal * covariance, flat))
        return float(-density - exponent + 0.5 * off @ off)

    rng = np.random.default_rng(0)
    for _ in range(4):
        one, other = (likelihood.center + 0.5 * rng.normal(size=7) for _ in range(2))
        found = likelihood(one)[0] - likelihood(other)[0]
        assert found == pytest.approx(by_rows(one) - by_rows(other), abs=1e-5)
        slope = approx_fprime(one, lambda x: likelihood(x)[0], 1e-7)
        np.testing.assert_allclose(likelihood(one)[1], slope, rtol=1e-3, atol=1e-4)


def test_what_is_learned_tells_noise_and_signal_apart() -> None:
    given = vectors(150)
    noise = np.random.default_rng(1)
    true = np.array([accuracy(v) for v in given])
    spread = float(true.std())
    little, much = Surrogate(), Surrogate()
    for process, share in ((little, 0.05), (much, 2.0)):
        seen = true[:, None] + share * spread * noise.normal(size=(150, 3))
        observed = {f"g{i}": Repeats.of(row) for i, row in enumerate(seen.tolist())}
        process.learn(observed, lookup(given))
        assert process._posterior is not None
        variance = process._signal * process._posterior.covariance.noise
        assert process.scale * math.sqrt(variance) == pytest.approx(share * spread, rel=0.25)
    guesses = little.leave_one_out()
    assert spearmanr(list(guesses.values()), true).statistic > 0.6


@pytest.mark.parametrize("values", [[0.5], [0.5, 0.5, 0.5], [0.0, 1.0], [1e-12, 2e-12]])
def test_few_or_equal_points_are_no_trouble(values: list[float]) -> None:
    given, asked = vectors(len(values)), vectors(3, seed=1)
    process = Surrogate()
    process.learn({f"g{i}": Repeats.of([v]) for i, v in enumerate(values)}, lookup(given))
    found = process.expecting(())(asked)
    assert (np.abs(found.mean - np.mean(values)) < 0.5).all()
    assert (found.deviation > 0.001).all()
    assert (found.deviation < 0.6).all()
    if len(set(values)) == 1:
        np.testing.assert_allclose(found.mean, values[0], atol=1e-9)


def test_equal_descriptions_of_different_graphs_are_no_trouble() -> None:
    given = vectors(1) * 40
    process = Surrogate()
    process.learn(repeats(given, seed=3), lookup(given))
    assert np.isfinite(process.expecting(())(given).deviation).all()


def test_what_cannot_be_is_refused() -> None:
    process = Surrogate()
    with pytest.raises(SurrogateError, match="no graph has been observed"):
        process.learn({}, lookup([]))
    with pytest.raises(SurrogateError, match="no graph has been observed"):
        process.expecting(())(vectors(1))
    for values in ([], [math.nan], [0.5, math.inf]):
        with pytest.raises(ValueError, match="must be finite"):
            Repeats.of(values)


def test_a_factorisation_that_fails_is_seen() -> None:
    with pytest.raises(SurrogateError, match="of 2 graphs could not be factorized"):
        factorize(np.array([[1.0, 2.0], [2.0, 1.0]]))
