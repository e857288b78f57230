"""Arrays and texts in a safetensors file, each with a checksum that is verified on reading."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple, cast

import google_crc32c
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from aiperf_hpc.errors import CheckpointError, StorageError
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.run.storage import Retry, Sync, no_retry, to_stable_storage

Array = NDArray[np.float32]
Warn = Callable[[str], None]
"""Called with a one-line warning about a file that can still be used."""

_CONTENTS = "contents"
"""Name of the only text in the header; the library would write several in random order."""
_PARTS = ("texts", "checksums")
_LENGTH = 8
"""Bytes of the header length at the beginning of a safetensors file."""


class Contents(NamedTuple):
    """Content of a file, by name."""

    texts: Mapping[str, str]
    arrays: Mapping[str, Array]


def ignore(_: str) -> None:
    """Ignore the warning."""


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


def load_checked(
    path: Path, texts: Collection[str], retry: Retry = no_retry, warn: Warn = ignore
) -> Contents:
    """Read a file.

    Args:
        path: path of the file.
        texts: names of the texts in the file.
        retry: retry policy of the read; a BackoffRetry waits while the storage is unavailable.
        warn: called if the file has an earlier format without checksums.

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
        if stored is not None:
            _compare(stored, _checksums(contents))
    except (ValueError, KeyError, SafetensorError) as error:
        raise damaged(path, error) from None
    if stored is None:
        warn(f"the checkpoint {path} has no checksums, so that damage of it would not be seen")
    return contents


def damaged(path: Path, error: object) -> CheckpointError:
    """Return a one-line error for a damaged file, without unprintable characters."""
    what = "".join(each if each.isprintable() else " " for each in str(error))
    return CheckpointError(f"the checkpoint {path} is damaged: {' '.join(what.split())}")


def _header(content: bytes) -> tuple[dict[str, str], dict[str, str] | None]:
    """Return the texts and the checksums of a file; checksums are None in the earlier format."""
    metadata = _metadata(content)
    if _CONTENTS not in metadata:
        return metadata, None
    contents = _parsed(metadata.pop(_CONTENTS))
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
