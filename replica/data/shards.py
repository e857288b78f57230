"""What a prepared folder of shards holds: their index, and its verification.

A shard is a TFRecord file of some samples. What is wrong with one is said with its dataset's name.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from aiperf_hpc.datasets.manifest import load_dataset_manifest
from aiperf_hpc.errors import DatasetError, reason_of
from aiperf_hpc.replica.data.staging import HEAD
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.trial import DatasetInfo, Value
from aiperf_hpc.untrusted.bounds import first_fault

INDEX = "shards.json"
SIZES = "sizes.npy"
"""The bytes of every record, in the shards' order, training first: where each one is."""

Sizes = NDArray[np.int64]


class Shard(Value):
    """A TFRecord file: what it is called, how much is in it, and how to recognise it."""

    file: str
    samples: Annotated[int, Field(ge=1)]
    bytes: Annotated[int, Field(ge=1)]
    head_sha256: str
    """SHA-256 of the first 65,536 bytes, or of all of them when there are fewer."""
    sha256: str
    converted: dict[int, str] = {}
    """SHA-256 of the source files that are not stored as they were, by their samples' places."""


class ShardIndex(Value):
    """The shards of both parts, in their order, and the dataset that they belong to."""

    schema_version: Literal[1] = 1
    dataset_sha256: str
    """``sha256`` of the folder's dataset.json."""
    train: tuple[Shard, ...]
    validation: tuple[Shard, ...]


def describe_shard(path: Path, samples: int, converted: Mapping[int, str] | None = None) -> Shard:
    """Read a finished shard and return its entry in the index.

    Args:
        path: the shard.
        samples: how many are in it.
        converted: the SHA-256 of source files that are not stored as they were, by places.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return Shard(
            file=path.name,
            samples=samples,
            bytes=path.stat().st_size,
            head_sha256=_head_sha256(file),
            sha256=_sha256(file),
            converted=dict(converted or {}),
        )


def save_index(folder: Path, index: ShardIndex) -> None:
    """Write the index of a folder's shards."""
    write_whole(folder / INDEX, index.model_dump_json(indent=1) + "\n")


def load_index(folder: Path, dataset: str) -> ShardIndex:
    """Read the index of a folder's shards. Raises DatasetError when it cannot be."""
    path = folder / INDEX
    try:
        return ShardIndex.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DatasetError(f"dataset '{dataset}': cannot read {path}: {reason_of(error)}") from None
    except ValidationError as error:
        raise DatasetError(
            f"dataset '{dataset}': {path} is damaged: {first_fault(error)}; prepare it again"
        ) from None


def open_index(folder: Path, name: str) -> tuple[DatasetInfo, ShardIndex]:
    """Read what describes a prepared folder.

    Raises:
        DatasetError: it was not prepared, or its descriptions are of two preparations.
    """
    info, index = load_dataset_manifest(folder, name), load_index(folder, name)
    counts = [sum(s.samples for s in part) for part in (index.train, index.validation)]
    if index.dataset_sha256 != info.sha256 or counts != [
        info.train_samples,
        info.validation_samples,
    ]:
        raise DatasetError(
            f"dataset '{name}': dataset.json and shards.json of {folder} are of two preparations; "
            "prepare it again"
        )
    return info, index


def save_sizes(folder: Path, sizes: Sequence[int]) -> None:
    """Write the sizes of all records of a folder's shards. Raises OSError."""
    np.save(folder / SIZES, np.array(sizes, np.int64), allow_pickle=False)


def load_sizes(folder: Path, index: ShardIndex, dataset: str) -> tuple[Sizes, Sizes]:
    """Read the sizes of the training and of the validation records.

    Raises:
        DatasetError: they cannot be read, or are not those of these shards.
    """
    path = folder / SIZES
    try:
        sizes = np.load(path, allow_pickle=False)
    except OSError as error:
        raise DatasetError(
            f"dataset '{dataset}': cannot read {path}: {reason_of(error)}; prepare it again"
        ) from None
    except (ValueError, EOFError):
        raise DatasetError(f"dataset '{dataset}': {path} is damaged; prepare it again") from None
    shards = (*index.train, *index.validation)
    ends = np.cumsum([shard.samples for shard in shards])
    expected = [shard.bytes for shard in shards]
    if (
        sizes.dtype != np.int64
        or sizes.shape != (ends[-1],)
        or (np.add.reduceat(sizes, np.concatenate([[0], ends[:-1]])).tolist() != expected)
    ):
        raise DatasetError(
            f"dataset '{dataset}': {path} is not of the shards in {folder}; prepare it again"
        )
    training = sum(shard.samples for shard in index.train)
    return sizes[:training], sizes[training:]


def verify_shards(
    folder: Path, shards: Iterable[Shard], threads: int, dataset: str, *, whole: bool
) -> None:
    """Check that each shard is the one that was prepared.

    Args:
        threads: how many shards are looked at at once.
        dataset: what they are of, for messages.
        whole: read every byte, or else the size and the first 65,536 bytes. TFRecord's own
            checksums find damage behind those when the samples are read.

    Raises:
        DatasetError: naming the first shard that is missing, unreadable, truncated or another.
    """
    with ThreadPoolExecutor(threads) as pool:
        checks = [
            pool.submit(_verify, folder / shard.file, shard, dataset, whole) for shard in shards
        ]
        try:
            for check in checks:
                check.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _verify(path: Path, shard: Shard, dataset: str, whole: bool) -> None:
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            same = size == shard.bytes and _head_sha256(file) == shard.head_sha256
            if same and whole:
                same = _sha256(file) == shard.sha256
    except OSError as error:
        raise DatasetError(
            f"dataset '{dataset}': cannot read {path}: {reason_of(error)}; prepare the dataset "
            "again"
        ) from None
    if size != shard.bytes:
        problem = "is truncated" if size < shard.bytes else "is not the shard that was prepared"
        raise DatasetError(
            f"dataset '{dataset}': {path} {problem}: it has {size} bytes, not {shard.bytes}; "
            "prepare the dataset again"
        )
    if not same:
        raise DatasetError(
            f"dataset '{dataset}': {path} is not the shard that was prepared: its content is "
            "another; prepare the dataset again"
        )


def _head_sha256(file: io.BufferedReader) -> str:
    file.seek(0)
    return hashlib.sha256(file.read(HEAD)).hexdigest()


def _sha256(file: io.BufferedReader) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()
