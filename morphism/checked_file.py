"""Arrays and texts in one safetensors file, each with a checksum that every reading verifies."""

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
from aiperf_hpc.paths import write_whole
from aiperf_hpc.storage import Persist, Sync, at_once, to_stable_storage

Array = NDArray[np.float32]
Tell = Callable[[str], None]
"""Told in one line what is not as it should be with a file that can be used all the same."""

_CHECKSUMS = "checksums"
_LENGTH = 8
"""Bytes at the beginning of a safetensors file that say how long its header is."""


class Contents(NamedTuple):
    """What is in a file, by name."""

    texts: Mapping[str, str]
    arrays: Mapping[str, Array]


def ignore(_: str) -> None:
    """Let it pass."""


def save_checked(
    path: Path,
    arrays: Mapping[str, Array],
    texts: Mapping[str, str],
    sync: Sync = to_stable_storage,
) -> None:
    """Write a file, whole or not at all. Raises OSError."""
    tensors = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    checksums = json.dumps(_checksums(Contents(texts, tensors)))
    write_whole(path, save_tensors(tensors, {**texts, _CHECKSUMS: checksums}), sync)


def load_checked(
    path: Path, texts: Collection[str], persist: Persist = at_once, tell: Tell = ignore
) -> Contents:
    """Read a file.

    Args:
        path: where it is.
        texts: the names of the texts that are in it.
        persist: how to read; a Patience waits while the storage is away.
        tell: told when the file is from before there were checksums.

    Raises:
        CheckpointError: the file is missing or damaged; it says what of it.
    """
    try:
        # Read, not mapped: a mapped file whose server goes away ends the process.
        content = persist(path.read_bytes, f"the checkpoint {path}", "read")
    except StorageError as error:
        raise CheckpointError(str(error)) from None
    try:
        metadata = _metadata(content)
        stored = metadata.pop(_CHECKSUMS, None)
        if metadata.keys() != set(texts):
            raise ValueError(f"its header names {sorted(metadata)}, not {sorted(texts)}")
        contents = Contents(metadata, load_tensors(content))
        if stored is not None:
            _compare(json.loads(stored), _checksums(contents))
    except (ValueError, KeyError, SafetensorError) as error:
        raise damaged(path, error) from None
    if stored is None:
        tell(f"the checkpoint {path} has no checksums, so that damage of it would not be seen")
    return contents


def damaged(path: Path, error: object) -> CheckpointError:
    """Return what says in one line that a file is damaged, however odd what was read from it."""
    what = "".join(each if each.isprintable() else " " for each in str(error))
    return CheckpointError(f"the checkpoint {path} is damaged: {' '.join(what.split())}")


def _metadata(content: bytes) -> dict[str, str]:
    """Return the texts in the header of a safetensors file."""
    if len(content) < _LENGTH:
        raise ValueError(f"it has {len(content)} bytes")
    length = int.from_bytes(content[:_LENGTH], "little")
    try:
        header = json.loads(content[_LENGTH : _LENGTH + length])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its header: {error}") from None
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("its header has no texts")
    return metadata


def _checksums(contents: Contents) -> dict[str, str]:
    """Return the CRC32C of every text and array, of an array with its type and shape."""
    found = {f"text {name}": text.encode() for name, text in contents.texts.items()}
    sums = {name: google_crc32c.value(text) for name, text in found.items()}
    for name, array in contents.arrays.items():
        began = google_crc32c.value(f"{array.dtype.name} {array.shape}".encode())
        # Its buffer, not a copy of it.
        sums[f"tensor {name}"] = google_crc32c.extend(began, cast(bytes, array))
    return {name: f"{value:08x}" for name, value in sums.items()}


def _compare(stored: object, found: Mapping[str, str]) -> None:
    if not isinstance(stored, dict):
        raise ValueError("its checksums are none")
    for name in sorted(stored.keys() | found.keys()):
        if stored.get(name) != found.get(name):
            there, was = found.get(name, "missing"), stored.get(name, "missing")
            raise ValueError(f"its {name}: the checksum is {there}, it was stored with {was}")
