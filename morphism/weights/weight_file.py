"""Weights of a graph as named float32 arrays, and the safetensors files of weights and predictions.

Each array and text in a file has a checksum, which is verified on reading. The predictions of a
trained network are the predicted class of each validation sample, in the smallest unsigned integer
type for the number of classes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import google_crc32c
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from aiperf_hpc.errors import CheckpointError, GraphError, StorageError
from aiperf_hpc.graph import Distribution, Graph, InitialValue, Shape
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.run.storage import Retry, Sync, no_retry, to_stable_storage
from aiperf_hpc.untrusted.files import bytes_of, regular_descriptor

Array = NDArray[np.float32]

_CONTENTS = "contents"
"""Name of the only text in the header; the library would write several in random order."""
_PARTS = ("texts", "checksums")
_LENGTH = 8
"""Bytes of the header length at the beginning of a safetensors file."""
_MOST_HEADER_BYTES = 100_000_000
"""Maximum length of a header in bytes, as in the safetensors library."""
_TYPE, _TYPE_BYTES = "F32", 4
"""Type of all weights and optimizer states in a header, and its size."""
_MOST_AXES = 32
"""Maximum number of axes of an array, as in NumPy 1."""


class Contents(NamedTuple):
    """Content of a file, by name."""

    texts: Mapping[str, str]
    arrays: Mapping[str, Array]


def save_checked(
    path: Path,
    arrays: Mapping[str, Array],
    texts: Mapping[str, str],
    sync: Sync = to_stable_storage,
) -> None:
    """Write a file atomically. Raises OSError."""
    write_whole(path, serialized(arrays, texts), sync)


def serialized(arrays: Mapping[str, Array], texts: Mapping[str, str]) -> bytes:
    """Return the content of a file with these arrays and texts."""
    # Not ascontiguousarray, which changes the shape ().
    tensors = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    header = {"texts": texts, "checksums": _checksums(Contents(texts, tensors))}
    return save_tensors(tensors, {_CONTENTS: json.dumps(header, sort_keys=True)})


def load_checked(path: Path, texts: Collection[str], retry: Retry = no_retry) -> Contents:
    """Read a file.

    Args:
        path: path of the file.
        texts: names of the texts in the file.
        retry: retry policy of the read; a BackoffRetry waits while the storage is unavailable.

    Raises:
        CheckpointError: the file is missing or damaged; the message names the damaged part.
    """
    try:
        # Read, not mapped: the process would crash if the server of a mapped file fails.
        content = retry(path.read_bytes, f"the checkpoint {path}", "read")
    except StorageError as error:
        raise CheckpointError(str(error)) from None
    try:
        found, stored = _header(content)
        if found.keys() != set(texts):
            raise ValueError(f"its header names {sorted(found)}, not {sorted(texts)}")
        contents = Contents(found, load_tensors(content))
        _compare(stored, _checksums(contents))
    except (ValueError, KeyError, SafetensorError) as error:
        raise damaged(path, error) from None
    return contents


def stored_shapes(path: Path) -> dict[str, Shape]:
    """Return the shapes of a file's float32 arrays by name; only the header is read.

    Raises:
        CheckpointError: the header is damaged, or contradicts itself or the size of the file.
        OSError: the file cannot be read.
    """
    with open(regular_descriptor(path, follow=False), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(_LENGTH), "little")
        if length > _MOST_HEADER_BYTES:
            raise damaged(path, f"its header is longer than {_MOST_HEADER_BYTES:,} bytes")
        content = file.read(length)
    try:
        header = _parsed(content)
        if not isinstance(header, dict):
            raise ValueError("its header is not a mapping")
        arrays = {name: value for name, value in header.items() if name != "__metadata__"}
        shapes = {name: _stored_shape(name, value) for name, value in arrays.items()}
        stated = _LENGTH + length + _TYPE_BYTES * sum(map(math.prod, shapes.values()))
        if size != stated:
            raise ValueError(f"it has {size} bytes, its header states {stated}")
        return shapes
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(path, error) from None


def _stored_shape(name: str, stated: dict[str, Any]) -> Shape:
    """Return the shape of an array by its part of a header."""
    begin, end = map(_natural, stated["data_offsets"])
    shape = tuple(map(_natural, stated["shape"]))
    if len(shape) > _MOST_AXES:
        raise ValueError(f"{name} has {len(shape)} axes")
    if stated["dtype"] != _TYPE or end - begin != _TYPE_BYTES * math.prod(shape):
        raise ValueError(f"the type and shape of {name} do not match its {end - begin} bytes")
    return shape


def _natural(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("an offset or a shape in its header is not a nonnegative integer")
    return value


def damaged(path: Path, error: object) -> CheckpointError:
    """Return a one-line error for a damaged file, without unprintable characters."""
    what = "".join(each if each.isprintable() else " " for each in str(error))
    return CheckpointError(f"the checkpoint {path} is damaged: {' '.join(what.split())}")


def _header(content: bytes) -> tuple[dict[str, str], dict[str, str]]:
    """Return the texts and the checksums of a file."""
    metadata = _metadata(content)
    contents = _parsed(metadata.pop(_CONTENTS, "null"))
    found = [contents.pop(key, None) if isinstance(contents, dict) else None for key in _PARTS]
    texts, checksums = map(_texts, found)
    if metadata or contents or texts is None or checksums is None:
        raise ValueError("its header is not that of a checkpoint")
    return texts, checksums


def _metadata(content: bytes) -> dict[str, str]:
    """Return the texts in the header of a safetensors file."""
    if len(content) < _LENGTH:
        raise ValueError(f"it has {len(content)} bytes")
    length = int.from_bytes(content[:_LENGTH], "little")
    header = _parsed(content[_LENGTH : _LENGTH + length])
    metadata = _texts(header.get("__metadata__") if isinstance(header, dict) else None)
    if metadata is None:
        raise ValueError("its header has no texts")
    return metadata


def _parsed(text: str | bytes) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its header: {error}") from None


def _texts(value: object) -> dict[str, str] | None:
    """Return ``value`` if it is a mapping of names to texts."""
    right = isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
    return cast(dict[str, str], value) if right else None


def _checksums(contents: Contents) -> dict[str, str]:
    """Return the CRC32C of every text and array; that of an array includes its type and shape."""
    found = {f"text {name}": text.encode() for name, text in contents.texts.items()}
    sums = {name: google_crc32c.value(text) for name, text in found.items()}
    for name, array in contents.arrays.items():
        began = google_crc32c.value(f"{array.dtype.name} {array.shape}".encode())
        # The buffer without a copy.
        sums[f"tensor {name}"] = google_crc32c.extend(began, cast(bytes, array))
    return {name: f"{value:08x}" for name, value in sums.items()}


def _compare(stored: Mapping[str, str], found: Mapping[str, str]) -> None:
    for name in sorted(stored.keys() | found.keys()):
        if stored.get(name) != found.get(name):
            there, was = found.get(name, "missing"), stored.get(name, "missing")
            raise ValueError(f"its {name}: the checksum is {there}, it was stored with {was}")


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


def load_checkpoint(path: Path, retry: Retry = no_retry) -> tuple[Graph, Weights]:
    """Read a checkpoint and verify its checksums.

    Args:
        path: path of the file.
        retry: retry policy of the read; a BackoffRetry waits while the storage is unavailable.

    Raises:
        CheckpointError: the file is missing or damaged, or its weights do not fit its graph.
    """
    texts, weights = load_checked(path, ("graph",), retry)
    return stored_graph(path, texts["graph"], weights), weights


def stored_graph(path: Path, text: str, weights: Weights) -> Graph:
    """Return the graph in the checkpoint ``path``. Raises CheckpointError if weights do not fit."""
    try:
        graph = Graph.from_json(text)
        check_weights(graph, weights)
    except (GraphError, CheckpointError) as error:
        raise damaged(path, error) from None
    return graph


_ARRAY, _TEXTS = "class", ("trial", "epoch")
MOST_PREDICTIONS_BYTES = 256 * 2**20
"""Maximum size of a file of predictions in bytes; ImageNet's 50,000 need 100 kB."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predictions of a network at the end of an epoch."""

    trial: str
    epoch: int
    classes: NDArray[np.int64]
    """Predicted class of each validation sample, (samples,), in the order of the dataset."""


def save_predictions(path: Path, predictions: Predictions, sync: Sync = to_stable_storage) -> str:
    """Write a file atomically; return its SHA-256. Raises OSError."""
    classes = predictions.classes
    small = classes.astype(np.min_scalar_type(int(classes.max(initial=0))))
    texts = {"trial": predictions.trial, "epoch": str(predictions.epoch)}
    save_checked(path, {_ARRAY: small}, texts, sync)
    return file_digest(path)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal. Raises OSError."""
    return hashlib.sha256(bytes_of(path, MOST_PREDICTIONS_BYTES)).hexdigest()


def load_predictions(path: Path) -> Predictions:
    """Read a file. Raises CheckpointError if it is missing or damaged."""
    texts, arrays = load_checked(path, _TEXTS)
    found = arrays.get(_ARRAY)
    if found is None or found.ndim != 1 or not np.issubdtype(found.dtype, np.unsignedinteger):
        raise CheckpointError(f"{path} contains no predicted classes")
    return Predictions(texts["trial"], int(texts["epoch"]), found.astype(np.int64))


def load_recorded(path: Path, sha256: str) -> Predictions:
    """Read the file with a recorded SHA-256.

    Raises:
        OSError: the file cannot be read.
        CheckpointError: the file has another SHA-256 or is damaged.
    """
    if file_digest(path) != sha256:
        raise CheckpointError(f"{path} is not the file that was recorded")
    return load_predictions(path)
