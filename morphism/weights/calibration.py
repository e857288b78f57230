"""Making inserted normalisations transparent on a batch: in training mode too.

A batch normalisation standardises, in training mode, by the moments of the batch that it reads.
It changes nothing when its scale and shift are the deviation and the mean of that very batch. So
these are measured before the first step, by whoever can execute the graph. In inference the layer
is the identity whatever the moments are, before and after.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.errors import MorphismError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.weights.checkpoint import Weights
from aiperf_hpc.morphism.weights.moments import Moments, Vector, deviation, normalisation

Measure = Callable[[], NDArray[np.floating[Any]]]
"""Executes the network as it is now, in training mode, on the batch; returns mean and biased
variance of what every normalisation reads, flat, in the order of ``graph.statistics``."""


def transparent(graph: Graph, weights: Weights) -> tuple[tuple[str, ...], ...]:
    """Return the inserted normalisations that are the identity in inference, in waves.

    Nothing has been trained since they were inserted: the first step moves their statistics. A
    wave reads nothing of its own or of later waves, so that its moments can be measured together
    once all earlier waves are calibrated.
    """
    number: dict[str, int] = {}
    waves: dict[int, list[str]] = {}
    for node in graph.nodes:
        before = max((number[source] for source in node.inputs), default=0)
        found = node.inserted and node.layer.normalises and _undoes(node.name, weights)
        if found:
            waves.setdefault(before, []).append(node.name)
        number[node.name] = before + found
    return tuple(tuple(waves[place]) for place in sorted(waves))


def calibrate(
    graph: Graph,
    waves: Sequence[Sequence[str]],
    measure: Measure,
    assign: Callable[[Weights], None],
) -> tuple[str, ...]:
    """Make normalisations the identity in training mode on a batch; return their names.

    Args:
        graph: theirs.
        waves: the normalisations, as ``transparent`` returns them.
        measure: asked once for each wave, since a wave changes what later ones read.
        assign: takes the new weights of a wave's normalisations.

    Raises:
        MorphismError: what one of them reads is not finite.
    """
    for wave in waves:
        statistics = _by_name(graph, measure())
        assign({key: array for name in wave for key, array in _identity(name, statistics).items()})
    return tuple(name for wave in waves for name in wave)


def _undoes(name: str, weights: Weights) -> bool:
    """Return whether a normalisation gives back, in inference, what it reads."""
    gamma, beta, mean, variance = (
        weights[f"{name}/{key}"] for key in ("gamma", "beta", "mean", "variance")
    )
    return np.array_equal(gamma, deviation(variance)) and np.array_equal(beta, mean)


def _by_name(graph: Graph, flat: NDArray[np.floating[Any]]) -> dict[str, Vector]:
    sizes = [math.prod(shape) for shape in graph.statistics.values()]
    parts = np.split(flat.astype(np.float64), np.cumsum(sizes)[:-1])
    return dict(zip(graph.statistics, parts, strict=True))


def _identity(name: str, statistics: Mapping[str, Vector]) -> Weights:
    moments = Moments(statistics[f"{name}/mean"], statistics[f"{name}/variance"])
    if not all(np.isfinite(values).all() for values in moments):
        raise MorphismError(f"what '{name}' reads of the first batch is not finite")
    return normalisation(name, moments)
