"""Which kernel between graphs tells best what a graph is worth, and what does it cost?

    python benchmarks/kernels.py        # on one core, a minute; a table in Markdown
    python benchmarks/kernels.py --digits digits.json        # what search_digits.py has trained

Histories of random morphing from ResNet-50, accuracies from ``landscapes.py``; the figure is
Spearman's rank correlation between what a Gaussian process predicts of each graph if it is left
out and the truth (of real trainings, what they reached). All processes are fitted by one rule, that
of the surrogate: the highest posterior density, the signal's variance profiled, the same priors on
length, weights and noise.

- Edit distance, as in Auto-Keras (Jin et al. 2019, section 3.1): the layers of the longest path
  aligned in order, which costs the relative difference of widths for a pair and 1 for a layer left
  over, and skip connections matched by the Hungarian algorithm; exp(-(distance / length)^2). It is
  no Euclidean distance, so that the matrix need not be positive definite: Auto-Keras embeds it by
  Bourgain's theorem; here also with negative eigenvalues clipped. Kernel sizes are no part of
  it; because morphisms change them it is also given with a pair's cost 1 - (ratio of widths)
  (ratio of kernel sizes).
- Weisfeiler-Lehman subtree kernel, as in NAS-BOWL (Ru et al. 2021): labels with kind, kernel,
  stride and width; normalised products of the counts of labels of all refinements, of which there
  are 1 or 2, by likelihood; and the same counts as vectors under the surrogate's covariance.
- Each part of our description alone, and all of them.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import search_digits
from landscapes import LANDSCAPES
from numpy.typing import NDArray
from peers import RandomMorphing
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import linear_sum_assignment, minimize
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr
from search_quality import EVALUATIONS, noise_of, search
from side_by_side import machine

from aiperf_hpc.graph import BatchNorm, Conv2D, Graph, ReLU
from aiperf_hpc.morphism.networks.resnet import resnet50
from aiperf_hpc.morphism.surrogate.graph_description import PARTS, REFINEMENTS, Vector, describe

Matrix = NDArray[np.float64]
Numbers = NDArray[np.float64]

SEEDS = 10
SIZES: tuple[int, ...] = (16, EVALUATIONS)
"""Points that the processes know."""
HISTORY = 1000
"""Trained graphs that a candidate is compared with, for the cost."""


# Edit distance


@dataclass(frozen=True, slots=True)
class Chain:
    """A graph as Auto-Keras sees it. Ranks and lengths are in layers of the chain."""

    widths: Numbers
    kernels: Numbers
    starts: Numbers
    lengths: Numbers


def chain(graph: Graph) -> Chain:
    """Return the longest path, and the connections that skip parts of it."""
    depth: dict[str, int] = {}
    for node in graph.nodes:
        above = max((depth[source] for source in node.inputs), default=0)
        depth[node.name] = above + isinstance(node.layer, Conv2D)
    path = [graph.output]
    while path[-1].inputs:
        longest = max(path[-1].inputs, key=depth.__getitem__)
        path.append(graph.by_name[longest])
    path.reverse()
    on_path = {node.name for node in path}
    skips: list[tuple[int, int]] = []
    for before, node in zip(path, path[1:], strict=False):
        for source in node.inputs:
            if source != before.name:
                while source not in on_path:
                    (source,) = graph.by_name[source].inputs
                skips.append((depth[source], depth[before.name] - depth[source]))
    layers = [node.layer for node in path if isinstance(node.layer, Conv2D)]
    starts, lengths = np.array(skips, np.float64).reshape(-1, 2).T
    return Chain(
        np.array([layer.channels for layer in layers], np.float64),
        np.array([layer.kernel for layer in layers], np.float64),
        starts,
        lengths,
    )


def edit_distance(one: Chain, other: Chain, kernels: bool) -> float:
    """Return the distance; ``kernels`` says whether their sizes count."""
    likeness = _ratio(one.widths, other.widths)
    if kernels:
        likeness *= _ratio(one.kernels, other.kernels)
    return _alignment(1.0 - likeness) + _matching(one, other)


def _ratio(one: Numbers, other: Numbers) -> Matrix:
    ratio: Matrix = np.minimum.outer(one, other) / np.maximum.outer(one, other)
    return ratio


def _alignment(costs: Matrix) -> float:
    """Return the least cost of aligning two sequences, (one, other), in order."""
    steps = np.arange(costs.shape[1] + 1.0)
    row = steps
    for number, cost in enumerate(costs, 1):
        best = np.concatenate([[number], np.minimum(row[1:] + 1.0, row[:-1] + cost)])
        # Layers of the other that are left over cost 1 each, from wherever that is cheapest.
        row = np.minimum.accumulate(best - steps) + steps
    return float(row[-1])


def _matching(one: Chain, other: Chain) -> float:
    """Return the least cost of matching the skip connections."""
    apart = np.abs(np.subtract.outer(one.starts, other.starts))
    apart += np.abs(np.subtract.outer(one.lengths, other.lengths))
    most = np.maximum.outer(one.starts, other.starts) + np.maximum.outer(one.lengths, other.lengths)
    costs = apart / most
    rows, columns = linear_sum_assignment(costs)
    return float(costs[rows, columns].sum()) + abs(len(one.starts) - len(other.starts))


def bourgain(distances: Matrix) -> Matrix:
    """Return an embedding of a metric, (points, dimensions): distances to random sets of points."""
    points = len(distances)
    rng = np.random.default_rng(123)
    columns = [
        distances[:, rng.integers(points, size=2**power)].min(axis=1)
        for power in range(math.ceil(math.log2(points)))
        for _ in range(math.ceil(math.log(points)))
    ]
    return np.stack(columns, axis=1)


# Weisfeiler-Lehman


def subtrees(graph: Graph) -> list[Counter[int]]:
    """Return how often each label occurs, unrefined and after each refinement."""
    stands_for: dict[str, str] = {}
    sources: dict[str, list[str]] = {}
    readers: dict[str, list[str]] = {}
    label: dict[str, int] = {}
    for node in graph.nodes:
        if isinstance(node.layer, ReLU | BatchNorm):  # They belong to the layer that they follow.
            stands_for[node.name] = stands_for[node.inputs[0]]
            continue
        stands_for[node.name] = node.name
        readers[node.name] = []
        sources[node.name] = [stands_for[source] for source in node.inputs]
        for source in sources[node.name]:
            readers[source].append(node.name)
        label[node.name] = hash(repr(node.layer))
    found = [Counter(label.values())]
    for _ in range(REFINEMENTS):
        label = {
            name: hash(
                (
                    own,
                    tuple(sorted(label[source] for source in sources[name])),
                    tuple(sorted(label[reader] for reader in readers[name])),
                )
            )
            for name, own in label.items()
        }
        found.append(Counter(label.values()))
    return found


def _together(counters: Sequence[Counter[int]]) -> Counter[int]:
    total: Counter[int] = Counter()
    for counter in counters:
        total.update(counter)
    return total


def _rows(counters: Sequence[Counter[int]]) -> Matrix:
    """Return the counts, (graphs, labels)."""
    columns = {label: i for i, label in enumerate(sorted(_together(counters)))}
    rows = np.zeros((len(counters), len(columns)))
    for row, counter in zip(rows, counters, strict=True):
        for label, count in counter.items():
            row[columns[label]] = count
    return rows


# The process


@dataclass(frozen=True, slots=True)
class Term:
    """One part of a covariance."""

    matrix: Matrix
    """Distances; where ``shape`` is None the covariance itself."""
    shape: Callable[[Matrix], Matrix] | None
    """The covariance at distances in length scales."""

    @property
    def usual(self) -> float:
        """The length, but for a factor, that is most likely before anything is known."""
        some = self.matrix[self.matrix > 1e-6]
        return 1.65 * float(np.median(some)) if some.size else 1.0

    def part(self, rows: slice) -> Term:
        return Term(self.matrix[rows, rows], self.shape)


def euclidean(rows: Matrix) -> Matrix:
    """Return the distances of points, (points, points)."""
    distances: Matrix = cdist(rows, rows)
    return distances


def matern(distance: Matrix) -> Matrix:
    """Matern's covariance with smoothness 5/2."""
    u = math.sqrt(5.0) * distance
    covariance: Matrix = (1.0 + u + u * u / 3.0) * np.exp(-u)
    return covariance


def gauss(distance: Matrix) -> Matrix:
    """Return exp(-distance^2)."""
    covariance: Matrix = np.exp(-np.square(distance))
    return covariance


def clipped_gauss(distance: Matrix) -> Matrix:
    """Return the same with negative eigenvalues taken for zero."""
    values, vectors = np.linalg.eigh(gauss(distance))
    covariance: Matrix = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return covariance


@dataclass(frozen=True, slots=True)
class Fitted:
    """A process, fitted."""

    badness: float
    """Minus the logarithm of its posterior density."""
    left_out: Numbers
    """What it predicts of each point if it is left out, (points,), standardised."""


def fit(terms: Sequence[Term], values: Numbers) -> Fitted:
    """Fit a process to standardised values, (points,).

    The surrogate's rule, written again: without its gradient, so that any kernel will do.
    """
    usual = np.log([term.usual for term in terms])
    size, number = len(values), len(terms)

    def covariance(x: Numbers) -> Matrix:
        weights = np.exp(x[number:-1])
        total = np.zeros((size, size))
        for term, length, weight in zip(terms, x, weights / weights.sum(), strict=False):
            scaled = term.matrix / math.exp(length)
            total += weight * (term.matrix if term.shape is None else term.shape(scaled))
        total[np.diag_indices(size)] += math.exp(x[-1])
        return total

    centre = np.concatenate([usual, np.zeros(number), [math.log(0.05)]])
    spread = np.concatenate([np.ones(2 * number), [1.5]])

    def badness(x: Numbers) -> float:
        factor = cho_factor(covariance(x), lower=True)
        squares = float(values @ cho_solve(factor, values))
        signal = (squares + 1.0) / (size + 1.0)
        likelihood = 0.5 * size * math.log(signal) + float(np.log(np.diag(factor[0])).sum())
        return likelihood + 0.5 * float(np.square((x - centre) / spread).sum())

    bounds = [(c - 5.0, c + 5.0) for c in centre[:-1]] + [(math.log(1e-4), math.log(100.0))]
    found = minimize(badness, centre, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-5})
    inverse = np.linalg.inv(covariance(found.x))
    return Fitted(float(found.fun), values - inverse @ values / np.diag(inverse))


# The comparison


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel to be compared."""

    name: str
    feature: Callable[[Graph], Any]
    """What is kept of a graph."""
    covariances: Callable[[Sequence[Any]], Sequence[Sequence[Term]]]
    """What makes covariances of what is kept of graphs; of several the likeliest is taken, and each
    is a sum."""


def _edit(kernels: bool, embed: bool, chains: Sequence[Chain]) -> list[list[Term]]:
    size = len(chains)
    distances = np.zeros((size, size))
    for row in range(size):
        for column in range(row):
            distance = edit_distance(chains[row], chains[column], kernels)
            distances[row, column] = distances[column, row] = distance
    if embed:
        return [[Term(euclidean(bourgain(distances)), gauss)]]
    return [[Term(distances, clipped_gauss)]]


def _products(features: Sequence[list[Counter[int]]]) -> list[list[Term]]:
    """Return NAS-BOWL's covariances, with one refinement and with two."""
    found = []
    for refinements in (1, 2):
        rows = _rows([_together(feature[: 1 + refinements]) for feature in features])
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        found.append([Term(rows @ rows.T, None)])
    return found


def _vectors(features: Sequence[list[Counter[int]]]) -> list[list[Term]]:
    """Return Matern's covariance of the distances between the same counts."""
    return [[Term(euclidean(_rows([_together(feature) for feature in features])), matern)]]


def _described(parts: Sequence[str], vectors: Sequence[Vector]) -> list[list[Term]]:
    rows = np.asarray(vectors, np.float64)
    return [[Term(euclidean(rows[:, PARTS[part]]), matern) for part in parts]]


KERNELS = (
    Kernel("edit distance, Bourgain (Auto-Keras)", chain, partial(_edit, False, True)),
    Kernel("edit distance, clipped", chain, partial(_edit, False, False)),
    Kernel("edit distance with kernel sizes, clipped", chain, partial(_edit, True, False)),
    Kernel("Weisfeiler-Lehman, products (NAS-BOWL)", subtrees, _products),
    Kernel("Weisfeiler-Lehman, Matern of the distance", subtrees, _vectors),
    *(Kernel(f"ours, {part} alone", describe, partial(_described, [part])) for part in PARTS),
    Kernel("ours, all parts", describe, partial(_described, tuple(PARTS))),
)


@dataclass(frozen=True, slots=True)
class History:
    """Graphs that a search evaluated, oldest first."""

    graphs: list[Graph]
    accuracies: dict[str, tuple[Numbers, Numbers]]
    """What was observed of them, and the truth as far as it is known, by what is said of it."""


@dataclass(slots=True)
class Judgement:
    """How a kernel did."""

    correlations: dict[str, list[float]] = field(default_factory=dict)
    """The correlations in each history, by what is said of it."""
    graph_ms: list[float] = field(default_factory=list)
    pair_ms: list[float] = field(default_factory=list)

    def row(self, name: str) -> str:
        """Return its line of the table."""
        cells = [f"{fmean(found):.2f} ({min(found):.2f})" for found in self.correlations.values()]
        graph, pair = median(self.graph_ms), median(self.pair_ms)
        cells += [f"{graph:.2f}", f"{pair:.4f}", f"{graph + HISTORY * pair:.1f}"]
        return f"| {name} | {' | '.join(cells)} |"


def judge(kernel: Kernel, judgement: Judgement, history: History, sizes: Sequence[int]) -> None:
    """Add one history, of its first points and of more of them."""
    number = len(history.graphs)
    began = time.process_time()
    features = [kernel.feature(graph) for graph in history.graphs]
    ready = time.process_time()
    covariances = kernel.covariances(features)
    done = time.process_time()
    judgement.graph_ms.append(1e3 * (ready - began) / number)
    judgement.pair_ms.append(1e3 * (done - ready) / (number * (number - 1) / 2))
    for name, (observed, truth) in history.accuracies.items():
        for size in sizes:
            part = slice(size)
            values = (observed[part] - observed[part].mean()) / observed[part].std()
            fits = (fit([term.part(part) for term in terms], values) for terms in covariances)
            best = min(fits, key=attrgetter("badness"))
            found = float(spearmanr(best.left_out, truth[part]).statistic)
            judgement.correlations.setdefault(f"{name}, {size} points", []).append(found)


def synthetic(seed: int) -> History:
    """Return a history of random morphing, judged by all landscapes.

    Whom random morphing grows does not depend on accuracies, so that one will do for all.
    """
    initial = resnet50()
    landscapes = {name: draw(seed, initial) for name, draw in LANDSCAPES.items()}
    found = search(RandomMorphing(3), landscapes["smooth"], seed)
    graphs = list(found.graphs.values())
    accuracies: dict[str, tuple[Numbers, Numbers]] = {}
    for name, landscape in landscapes.items():
        truth = np.array([landscape.value(graph) for graph in graphs])
        accuracies[name] = truth + noise_of(seed), truth
    return History(graphs, accuracies)


def trained(searches: dict[str, Any]) -> History:
    """Return a history of real trainings; what they reached is all that is known of the truth."""
    graphs, accuracies = search_digits.evaluated(searches)
    seen = np.array(accuracies)
    return History(graphs, {searches["method"]: (seen, seen)})


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--digits", type=Path, help="the file of search_digits.py: judge by it")
    options = parser.parse_args()
    judgements = {kernel.name: Judgement() for kernel in KERNELS}
    if options.digits is None:
        histories, sizes = map(synthetic, range(options.seeds)), SIZES
    else:
        searches = search_digits.read(options.digits)
        histories, sizes = map(trained, searches), (search_digits.TRIALS,)
    for history in histories:
        for kernel in KERNELS:
            judge(kernel, judgements[kernel.name], history, sizes)
    print(f"{machine()}; means over histories (least); processor milliseconds\n")
    places = judgements[KERNELS[0].name].correlations
    head = (*places, "a graph", "a pair", f"a candidate against {HISTORY}")
    print(f"| kernel | {' | '.join(head)} |")
    print("|---" * (len(head) + 1) + "|")
    for name, judgement in judgements.items():
        print(judgement.row(name))


if __name__ == "__main__":
    main()
