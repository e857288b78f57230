"""Normalisations that change nothing: moments estimated from weights, then measured on a batch.

An inserted batch normalisation standardises by the moments of what it reads and undoes that by its
scale and shift. In inference it is the identity whatever these moments are. In training mode it is
the identity if they are the moments of that very batch. So it begins with moments estimated from
the weights alone, and before the first training step they are measured by whoever can execute the
graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.errors import MorphismError
from aiperf_hpc.graph import BatchNorm, ChannelRole, Graph, Node
from aiperf_hpc.morphism.weights.weight_file import Array, Weights

Vector = NDArray[np.float64]
MeasureMoments = Callable[[], NDArray[np.floating[Any]]]
"""Executes the network as it is now, in training mode, on the batch; returns mean and biased
variance of what every normalisation reads, flat, in the order of ``graph.statistics``."""


class Moments(NamedTuple):
    """Per channel, (channels,) each."""

    mean: Vector
    variance: Vector


def channel_moments(graph: Graph, weights: Weights, name: str) -> Moments:
    """Return the estimated moments of node ``name``, taking its inputs as independent.

    After a batch normalisation they are its shift and squared scale, whatever comes before;
    after a ReLU, leaky or not, those of a rectified normal variable; elsewhere sums of independent
    variables, which for a tanh, a dropout or a maximum is a coarse estimate.
    """
    needed = _needed(graph, name)
    known: dict[str, Moments] = {}
    for node in graph.nodes:
        if node.name in needed:
            known[node.name] = _after(node, graph.shapes[node.name][-1], known, weights)
    return known[name]


def normalisation(name: str, moments: Moments, scale: float = 1.0) -> dict[str, Array]:
    """Return the weights of a batch normalisation that multiplies by ``scale``.

    In inference whatever it reads; in training mode a batch whose moments these are.
    """
    mean, variance = moments.mean.astype(np.float32), moments.variance.astype(np.float32)
    return {
        f"{name}/gamma": np.float32(scale) * deviation(variance),
        f"{name}/beta": np.float32(scale) * mean,
        f"{name}/mean": mean,
        f"{name}/variance": variance,
    }


def deviation(variance: Array) -> Array:
    """Return what a batch normalisation divides by."""
    divisor: Array = np.sqrt(variance + np.float32(BatchNorm.epsilon))
    return divisor


def _needed(graph: Graph, name: str) -> set[str]:
    """Return the nodes whose moments decide those of ``name``: none below a normalisation."""
    needed: set[str] = set()
    waiting = [name]
    while waiting:
        node = graph.by_name[waiting.pop()]
        if node.name not in needed:
            needed.add(node.name)
            if not node.layer.normalises:
                waiting.extend(node.inputs)
    return needed


def _after(node: Node, channels: int, known: Mapping[str, Moments], weights: Weights) -> Moments:
    """Return the moments of what ``node``, which makes so many channels, gives."""
    if not node.inputs:
        return Moments(np.zeros(channels), np.ones(channels))
    if node.layer.normalises:
        gamma, beta = weights[f"{node.name}/gamma"], weights[f"{node.name}/beta"]
        return Moments(beta.astype(np.float64), np.square(gamma, dtype=np.float64))
    below = [known[name] for name in node.inputs]
    if node.layer.channel_role is ChannelRole.PRODUCES:
        kernel = weights[f"{node.name}/kernel"]
        kernel = kernel.reshape(-1, *kernel.shape[-2:])
        mean = below[0].mean @ kernel.sum(axis=0) + weights.get(f"{node.name}/bias", 0.0)
        return Moments(mean, below[0].variance @ np.einsum("kio,kio->io", kernel, kernel))
    if node.layer.negative_slope is not None:
        return _rectified(below[0], node.layer.negative_slope)
    mean = np.sum([b.mean for b in below], axis=0)
    variance = np.sum([b.variance for b in below], axis=0)
    # Channels that are rearranged are those of one pixel after another.
    pixels = channels // len(mean)
    return Moments(np.tile(mean, pixels), np.tile(variance, pixels))


def _rectified(normal: Moments, slope: float) -> Moments:
    """Return the moments of max(x, 0) + slope * min(x, 0) for a normal x."""
    from scipy.special import ndtr  # slow to import, and every command imports this module

    mean, spread = normal.mean, np.sqrt(np.maximum(normal.variance, 1e-12))
    ratio = mean / spread
    below = ndtr(ratio)
    density = np.exp(-0.5 * ratio**2) / np.sqrt(2.0 * np.pi)
    first = mean * below + spread * density
    second = (mean**2 + spread**2) * below + mean * spread * density
    # What is left of the mean, and of the mean square, lies below zero.
    mean_square = second + slope**2 * (mean**2 + spread**2 - second)
    first = first + slope * (mean - first)
    return Moments(first, np.maximum(mean_square - first**2, 0.0))


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
    measure: MeasureMoments,
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
