"""Mean and variance of every channel, estimated from the weights without data.

An inserted batch normalisation starts with these as its statistics, so that the child behaves
like its parent in training mode too, not only in inference: standardising by what the layer
will really see and undoing it is the identity in both. They are estimates; what the layer
really sees is measured before the first training step (``calibration.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.graph import BatchNorm, ChannelRole, Graph, Node
from aiperf_hpc.morphism.weights.checkpoint import Array, Weights

Vector = NDArray[np.float64]


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
