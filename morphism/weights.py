"""Weights of a graph as named float32 arrays, and their files."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from aiperf_hpc.errors import CheckpointError, GraphError, StorageError
from aiperf_hpc.graph import Graph, Shape
from aiperf_hpc.paths import write_whole
from aiperf_hpc.storage import Persist, Sync, at_once, to_stable_storage

Array = NDArray[np.float32]
Weights = Mapping[str, Array]
"""``node/parameter`` or ``node/statistic`` to an array of the graph's shape for it."""

_FILLED_WITH = {"gamma": 1.0, "variance": 1.0, "beta": 0.0, "mean": 0.0, "bias": 0.0}


def expected_shapes(graph: Graph) -> dict[str, Shape]:
    """Return the shape of every array that the weights of ``graph`` have."""
    return {**graph.parameters, **graph.statistics}


def check_weights(graph: Graph, weights: Weights) -> None:
    """Raise CheckpointError unless ``weights`` are exactly those of ``graph``."""
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
    """Return He-normal kernels (He et al. 2015), unit scales and variances, zero shifts."""
    weights: dict[str, Array] = {}
    for name, shape in expected_shapes(graph).items():
        key = name.rsplit("/", 1)[1]
        if key == "kernel":
            weights[name] = he_normal(shape, rng)
        else:
            weights[name] = np.full(shape, _FILLED_WITH[key], np.float32)
    return weights


def he_normal(shape: Shape, rng: np.random.Generator) -> Array:
    """Return a kernel of mean 0 and variance 2 / fan-in, in all but the last axis."""
    deviation = math.sqrt(2.0 / math.prod(shape[:-1]))
    return rng.standard_normal(shape, np.float32) * np.float32(deviation)


def save_checkpoint(
    path: Path, graph: Graph, weights: Weights, sync: Sync = to_stable_storage
) -> None:
    """Write a graph with its weights as one safetensors file, whole or not at all.

    The graph is in the file's metadata: weights are named by its nodes, and an equal graph
    made elsewhere may name its nodes otherwise.
    """
    check_weights(graph, weights)
    tensors = {name: np.ascontiguousarray(array) for name, array in weights.items()}
    write_whole(path, save_tensors(tensors, {"graph": graph.to_json()}), sync)


def load_checkpoint(path: Path, persist: Persist = at_once) -> tuple[Graph, Weights]:
    """Read a checkpoint.

    Args:
        path: its file.
        persist: how to read; a Patience waits while the storage is away.

    Raises:
        CheckpointError: the file is missing, damaged, or its weights do not fit its graph.
    """
    content = read_checkpoint(path, persist)
    try:
        graph = Graph.from_json(checkpoint_metadata(content)["graph"])
        weights = load_tensors(content)
    except (struct.error, ValueError, KeyError, TypeError, SafetensorError, GraphError) as error:
        raise CheckpointError(f"the checkpoint {path} is damaged: {error}") from None
    try:
        check_weights(graph, weights)
    except CheckpointError as error:
        raise CheckpointError(f"the checkpoint {path} is damaged: {error}") from None
    return graph, weights


def read_checkpoint(path: Path, persist: Persist = at_once) -> bytes:
    """Return a checkpoint's bytes; CheckpointError when they cannot be read.

    Read, not mapped: a mapped file whose server goes away ends the process.
    """
    try:
        return persist(path.read_bytes, f"the checkpoint {path}", "read")
    except StorageError as error:
        raise CheckpointError(str(error)) from None


def checkpoint_metadata(content: bytes) -> dict[str, str]:
    """Return the metadata in a safetensors file. Raises ValueError and the like if damaged."""
    (length,) = struct.unpack_from("<Q", content)
    metadata: dict[str, str] = json.loads(content[8 : 8 + length])["__metadata__"]
    return metadata
