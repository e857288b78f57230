"""Weights of a graph as named float32 arrays, and checkpoint files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from aiperf_hpc.errors import CheckpointError, GraphError
from aiperf_hpc.graph import Distribution, Graph, InitialValue, Shape
from aiperf_hpc.morphism.weights.checked_file import Array as Array
from aiperf_hpc.morphism.weights.checked_file import (
    Warn,
    damaged,
    ignore,
    load_checked,
    save_checked,
)
from aiperf_hpc.run.storage import Retry, Sync, no_retry, to_stable_storage

Weights = Mapping[str, Array]
"""Arrays by name, ``node/parameter`` or ``node/statistic``, with the shapes in the graph."""


def expected_shapes(graph: Graph) -> dict[str, Shape]:
    """Return the shapes of the weights of ``graph`` by name."""
    return {**graph.parameters, **graph.statistics}


def check_weights(graph: Graph, weights: Weights) -> None:
    """Raise CheckpointError unless ``weights`` have exactly the names and shapes of ``graph``."""
    expected = expected_shapes(graph)
    if expected.keys() != weights.keys():
        missing = sorted(expected.keys() - weights.keys())
        unknown = sorted(weights.keys() - expected.keys())
        raise CheckpointError(
            f"weights do not fit the graph: missing {missing[:3]}, unknown {unknown[:3]}"
        )
    for name, shape in expected.items():
        if weights[name].shape != shape:
            raise CheckpointError(
                f"weights do not fit the graph: {name} is {weights[name].shape}, not {shape}"
            )
        if weights[name].dtype != np.float32:
            raise CheckpointError(
                f"weights do not fit the graph: {name} is {weights[name].dtype}, not float32"
            )


def initial_weights(graph: Graph, rng: np.random.Generator) -> Weights:
    """Return initial weights, as defined by each layer."""
    weights: dict[str, Array] = {}
    for name, shape in expected_shapes(graph).items():
        node, key = name.rsplit("/", 1)
        value = graph.by_name[node].layer.initial_values[key]
        kernel = graph.parameters.get(f"{node}/kernel", shape)
        weights[name] = _initial(value, shape, kernel, rng)
    return weights


def _initial(value: InitialValue, shape: Shape, kernel: Shape, rng: np.random.Generator) -> Array:
    """Return an initial array of a layer with a kernel of the given shape."""
    match value:
        case Distribution.HE_NORMAL:
            return he_normal(shape, rng)
        case Distribution.STANDARD_NORMAL:
            return rng.standard_normal(shape, np.float32)
        case Distribution.NORMAL_HUNDREDTH:
            return rng.standard_normal(shape, np.float32) * np.float32(0.01)
        case Distribution.NORMAL_THOUSANDTH:
            return rng.standard_normal(shape, np.float32) * np.float32(0.001)
        case Distribution.GLOROT_UNIFORM:
            return _glorot_uniform(shape, rng)
        case Distribution.FAN_OUT_TRUNCATED_NORMAL:
            return _fan_out_truncated_normal(shape, rng)
        case float():
            return np.full(shape, value, np.float32)
        case Distribution.FAN_IN_UNIFORM:
            bound = math.sqrt(1.0 / math.prod(kernel[:-1]))
            return rng.uniform(-bound, bound, shape).astype(np.float32)


def he_normal(shape: Shape, rng: np.random.Generator) -> Array:
    """Return a normal kernel with variance 2 / fan-in, the product of all axes but the last."""
    deviation = math.sqrt(2.0 / math.prod(shape[:-1]))
    return rng.standard_normal(shape, np.float32) * np.float32(deviation)


def _glorot_uniform(shape: Shape, rng: np.random.Generator) -> Array:
    """Return a kernel (..., in, out); both fans include the spatial size of the kernel."""
    elements = math.prod(shape[:-2])
    bound = math.sqrt(6.0 / (elements * (shape[-2] + shape[-1])))
    return rng.uniform(-bound, bound, shape).astype(np.float32)


CUT_DEVIATIONS = 2.0
CUT_DEVIATION = 0.87962566103423978
"""Standard deviation of a standard normal variable truncated at two standard deviations."""


def _fan_out_truncated_normal(shape: Shape, rng: np.random.Generator) -> Array:
    """Return a kernel (..., in, out); truncated values are resampled."""
    drawn = rng.standard_normal(shape, np.float32)
    while (cut := np.abs(drawn) > CUT_DEVIATIONS).any():
        drawn[cut] = rng.standard_normal(int(cut.sum()), np.float32)
    fan_out = math.prod(shape[:-2]) * shape[-1]
    return drawn * np.float32(math.sqrt(2.0 / fan_out) / CUT_DEVIATION)


def save_checkpoint(
    path: Path, graph: Graph, weights: Weights, sync: Sync = to_stable_storage
) -> None:
    """Write a graph and its weights atomically as a safetensors file.

    The graph is in the file's metadata, because weights are named after its nodes, and an equal
    graph may have other node names.
    """
    check_weights(graph, weights)
    save_checked(path, weights, {"graph": graph.to_json()}, sync)


def load_checkpoint(
    path: Path, retry: Retry = no_retry, warn: Warn = ignore
) -> tuple[Graph, Weights]:
    """Read a checkpoint and verify its checksums.

    Args:
        path: path of the file.
        retry: retry policy of the read; a BackoffRetry waits while the storage is unavailable.
        warn: called if the file has an earlier format without checksums.

    Raises:
        CheckpointError: the file is missing or damaged, or its weights do not fit its graph.
    """
    texts, weights = load_checked(path, ("graph",), retry, warn)
    return stored_graph(path, texts["graph"], weights), weights


def stored_graph(path: Path, text: str, weights: Weights) -> Graph:
    """Return the graph in the checkpoint ``path``. Raises CheckpointError if weights do not fit."""
    try:
        graph = Graph.from_json(text)
        check_weights(graph, weights)
    except (GraphError, CheckpointError) as error:
        raise damaged(path, error) from None
    return graph
