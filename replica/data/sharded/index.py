"""The index of a prepared folder of shards, and the verification of its files.

A shard is a TFRecord file of several samples. Messages include the name of the dataset.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from aiperf_hpc.datasets import load_dataset_manifest, read_errors
from aiperf_hpc.errors import DatasetError, reason_of
from aiperf_hpc.replica.data.progress import in_threads
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.trial import DatasetInfo, Value
from aiperf_hpc.untrusted.bounds import first_fault

INDEX = "shards.json"
SIZES = "sizes.npy"
"""Sizes of all records in bytes, in the order of the shards, training first."""
HEAD = 65_536
"""Number of bytes at the start of a file that are checked whenever its dataset is opened."""

Sizes = NDArray[np.int64]


class Shard(Value):
    """A TFRecord file: its name, its content, and checksums."""

    file: str
    samples: Annotated[int, Field(ge=1)]
    bytes: Annotated[int, Field(ge=1)]
    head_sha256: str
    """SHA-256 of the first 65,536 bytes, or of the whole file if it is smaller."""
    sha256: str
    converted: dict[int, str] = {}
    """SHA-256 of the source files of converted samples by the samples' positions."""


class ShardIndex(Value):
    """The shards of both parts, in their order, and the dataset that contains them."""

    schema_version: Literal[1] = 1
    dataset_sha256: str
    """``sha256`` of the folder's dataset.json."""
    train: tuple[Shard, ...]
    validation: tuple[Shard, ...]

    @property
    def shards(self) -> tuple[Shard, ...]:
        """All shards, training first."""
        return (*self.train, *self.validation)


def describe_shard(path: Path, samples: int, converted: Mapping[int, str] | None = None) -> Shard:
    """Read a finished shard and return its entry in the index.

    Args:
        path: path of the shard.
        samples: number of samples in the shard.
        converted: SHA-256 of the source files of converted samples by the samples' positions.

    Raises:
        OSError: the shard cannot be read.
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
    """Read the index of a folder's shards. Raises DatasetError if it cannot be read."""
    path = folder / INDEX
    try:
        with read_errors(path, dataset):
            return ShardIndex.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise DatasetError(
            f"dataset '{dataset}': {path} is damaged: {first_fault(error)}; prepare it again"
        ) from None


def open_index(folder: Path, dataset: str) -> tuple[DatasetInfo, ShardIndex]:
    """Read the description of a prepared folder.

    Raises:
        DatasetError: the folder was not prepared, or its descriptions are from different
            preparations.
    """
    info, index = load_dataset_manifest(folder, dataset), load_index(folder, dataset)
    counts = tuple(sum(s.samples for s in part) for part in (index.train, index.validation))
    expected = (info.train_samples, info.validation_samples)
    if index.dataset_sha256 != info.sha256 or counts != expected:
        raise DatasetError(
            f"dataset '{dataset}': dataset.json and shards.json of {folder} are of two "
            "preparations; prepare it again"
        )
    return info, index


def save_sizes(folder: Path, sizes: Sequence[int]) -> None:
    """Write the sizes of all records of a folder's shards. Raises OSError."""
    np.save(folder / SIZES, np.array(sizes, np.int64), allow_pickle=False)


def load_sizes(folder: Path, index: ShardIndex, dataset: str) -> tuple[Sizes, Sizes]:
    """Read the sizes of the training and of the validation records.

    Raises:
        DatasetError: the sizes cannot be read or belong to other shards.
    """
    path = folder / SIZES
    sizes = load_array(path, dataset)
    ends = np.cumsum([shard.samples for shard in index.shards])
    expected = [shard.bytes for shard in index.shards]
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


def load_array(path: Path, dataset: str) -> NDArray[Any]:
    """Read an array of a prepared folder. Raises DatasetError if it is missing or damaged."""
    try:
        with read_errors(path, dataset, "prepare it again"):
            array: NDArray[Any] = np.load(path, allow_pickle=False)
    except (ValueError, EOFError):
        raise DatasetError(f"dataset '{dataset}': {path} is damaged; prepare it again") from None
    return array


def verify_shards(
    folder: Path, shards: Sequence[Shard], threads: int, dataset: str, *, whole: bool
) -> None:
    """Check that each shard is the prepared one.

    Args:
        folder: path of the shards' folder.
        shards: entries of the shards in the index.
        threads: number of shards read concurrently.
        dataset: name of the dataset, for messages.
        whole: whether to read every byte instead of the size and the first 65,536 bytes. The
            checksums of TFRecord detect damage after those bytes when the samples are read.

    Raises:
        DatasetError: a shard is missing, unreadable, truncated or changed; the message names the
            first one.
    """
    for problem in in_threads(lambda s, _: _problem(folder / s.file, s, whole), shards, threads):
        if problem is not None:
            raise DatasetError(f"dataset '{dataset}': {problem}; prepare the dataset again")


def _problem(path: Path, shard: Shard, whole: bool) -> str | None:
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            same = size == shard.bytes and _head_sha256(file) == shard.head_sha256
            if same and whole:
                same = _sha256(file) == shard.sha256
    except OSError as error:
        return f"cannot read {path}: {reason_of(error)}"
    if size != shard.bytes:
        problem = "is truncated" if size < shard.bytes else "is not the shard that was prepared"
        return f"{path} {problem}: it has {size} bytes, not {shard.bytes}"
    return None if same else f"{path} is not the shard that was prepared: its content is another"


def _head_sha256(file: io.BufferedReader) -> str:
    file.seek(0)
    return hashlib.sha256(file.read(HEAD)).hexdigest()


def _sha256(file: io.BufferedReader) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()
