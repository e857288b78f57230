"""Identity batch normalizations: moments estimated from weights, then measured on a batch.

An inserted batch normalization standardizes its input by moments and cancels that by its scale and
shift. In inference, it is the identity for any moments. In training mode, it is the identity only
for the moments of the current batch. It therefore starts with moments estimated from the weights,
which an engine replaces by moments measured before the first training step.
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
"""Executes the current network in training mode on the batch. Returns the mean and biased variance
of the input of every normalization, flattened, in the order of ``graph.statistics``."""


class Moments(NamedTuple):
    """Mean and variance per channel, with shape (channels,) each."""

    mean: Vector
    variance: Vector


def channel_moments(graph: Graph, weights: Weights, name: str) -> Moments:
    """Return the estimated moments of the output of node ``name``, assuming independent inputs.

    For a batch normalization, they are its shift and squared scale, regardless of its input. For a
    ReLU, leaky or not, they are the moments of a rectified normal variable. For other layers, they
    are those of a sum of independent variables, a coarse estimate for tanh, dropout and maximum.
    """
    needed = _needed(graph, name)
    known: dict[str, Moments] = {}
    for node in graph.nodes:
        if node.name in needed:
            known[node.name] = _after(node, graph.shapes[node.name][-1], known, weights)
    return known[name]


def normalization(name: str, moments: Moments, scale: float = 1.0) -> dict[str, Array]:
    """Return the weights of a batch normalization that multiplies its input by ``scale``.

    This holds for any input in inference, and for a batch with these moments in training mode.
    """
    mean, variance = moments.mean.astype(np.float32), moments.variance.astype(np.float32)
    return {
        f"{name}/gamma": np.float32(scale) * deviation(variance),
        f"{name}/beta": np.float32(scale) * mean,
        f"{name}/mean": mean,
        f"{name}/variance": variance,
    }


def deviation(variance: Array) -> Array:
    """Return the divisor of a batch normalization."""
    divisor: Array = np.sqrt(variance + np.float32(BatchNorm.epsilon))
    return divisor


def _needed(graph: Graph, name: str) -> set[str]:
    """Return the nodes that the moments of ``name`` depend on; normalizations end the recursion."""
    needed: set[str] = set()
    waiting = [name]
    while waiting:
        node = graph.by_name[waiting.pop()]
        if node.name not in needed:
            needed.add(node.name)
            if not node.layer.normalizes:
                waiting.extend(node.inputs)
    return needed


def _after(node: Node, channels: int, known: Mapping[str, Moments], weights: Weights) -> Moments:
    """Return the moments of the output of ``node``, which has ``channels`` channels."""
    if not node.inputs:
        return Moments(np.zeros(channels), np.ones(channels))
    if node.layer.normalizes:
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
    # Rearranged channels are the concatenated channels of several pixels.
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
    # The negative part has the remainder of the mean and of the mean square.
    mean_square = second + slope**2 * (mean**2 + spread**2 - second)
    first = first + slope * (mean - first)
    return Moments(first, np.maximum(mean_square - first**2, 0.0))


def transparent(graph: Graph, weights: Weights) -> tuple[tuple[str, ...], ...]:
    """Return the inserted normalizations that are the identity in inference, in waves.

    They have not been trained since their insertion, because the first step changes their
    statistics. A wave depends only on earlier waves, so that its moments can be measured together
    after these are calibrated.
    """
    number: dict[str, int] = {}
    waves: dict[int, list[str]] = {}
    for node in graph.nodes:
        before = max((number[source] for source in node.inputs), default=0)
        found = node.inserted and node.layer.normalizes and _undoes(node.name, weights)
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
    """Make normalizations the identity in training mode on a batch; return their names.

    Args:
        graph: graph of the normalizations.
        waves: normalizations as returned by ``transparent``.
        measure: called once per wave, because a wave changes the inputs of later ones.
        assign: called with the new weights of a wave's normalizations.

    Raises:
        MorphismError: the input of a normalization is not finite.
    """
    for wave in waves:
        statistics = _by_name(graph, measure())
        assign({key: array for name in wave for key, array in _identity(name, statistics).items()})
    return tuple(name for wave in waves for name in wave)


def _undoes(name: str, weights: Weights) -> bool:
    """Return whether a normalization is the identity in inference."""
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
        raise MorphismError(f"the input of '{name}' in the first batch is not finite")
    return normalization(name, moments)
