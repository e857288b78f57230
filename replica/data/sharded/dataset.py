"""Dataset of a prepared folder of shards: its index, its samples, and their verification.

A shard is a TFRecord file of several samples. Threads read, check and decode them. Messages include
the name of the dataset.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.datasets import MANIFEST, load_dataset_manifest, read_errors
from aiperf_hpc.errors import DatasetError, raising, reason_of, restated
from aiperf_hpc.replica.data import rng
from aiperf_hpc.replica.data.base import WHOLE, Batch, Part, empty_batch, filled, rank_parts
from aiperf_hpc.replica.data.progress import Meter, ShowProgress, in_threads, not_shown
from aiperf_hpc.replica.data.rng import Purpose
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.trial import DatasetInfo, Value
from aiperf_hpc.untrusted.bounds import first_fault

PARTS = ("train", "validation")
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
            f"dataset '{dataset}': dataset.json and shards.json of {folder} are from different "
            "preparations; prepare it again"
        )
    return info, index


def save_sizes(folder: Path, sizes: Sequence[int]) -> None:
    """Write the sizes of all records of a folder's shards. Raises OSError."""
    np.save(folder / SIZES, np.array(sizes, np.int64), allow_pickle=False)


def load_files(folder: Path, index: ShardIndex, dataset: str) -> tuple[SampleFiles, SampleFiles]:
    """Return the training and the validation samples, after reading the sizes of their records.

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
            f"dataset '{dataset}': {path} does not belong to the shards in {folder}; prepare it "
            "again"
        )
    training, held_out = np.split(sizes, [sum(shard.samples for shard in index.train)])
    return (
        SampleFiles(dataset, folder, index.train, training),
        SampleFiles(dataset, folder, index.validation, held_out),
    )


def load_array(path: Path, dataset: str) -> NDArray[Any]:
    """Read an array of a prepared folder. Raises DatasetError if it is missing or damaged."""
    damaged = DatasetError(f"dataset '{dataset}': {path} is damaged; prepare it again")
    with (
        raising(damaged, ValueError, EOFError),
        read_errors(path, dataset, "prepare it again"),
    ):
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    return array


def sha256_of(lines: Iterable[tuple[str, str]]) -> str:
    """Return the SHA-256 of a dataset from the part and the digest of each sample, in order."""
    digest = hashlib.sha256()
    for part, sample in lines:
        digest.update(f"{part}\t{sample}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


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
    return None if same else f"{path} is not the shard that was prepared: its content differs"


def _head_sha256(file: io.BufferedReader) -> str:
    file.seek(0)
    return hashlib.sha256(file.read(HEAD)).hexdigest()


def _sha256(file: io.BufferedReader) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


T = TypeVar("T")


class Codec(Protocol):
    """The format of a dataset's samples in shards and in batches."""

    @property
    def name(self) -> str:
        """Name of the dataset."""

    def decode(self, content: memoryview, batch: Batch, at: int) -> None:
        """Decode a stored sample into its place in a batch.

        Raises:
            ValueError: the sample is damaged or has another shape.
        """

    def sha256(self, content: memoryview) -> str:
        """Return the SHA-256 of a stored sample's numbers. Raises ValueError like ``decode``."""


def load(codec: Codec, config: DatasetConfig, cores: int) -> ShardedDataset:
    """Open a prepared folder; each shard's size and first bytes are checked.

    Raises:
        DatasetError: no folder is given, the folder was not prepared, or a shard is missing,
            truncated or not the prepared one.
    """
    name, folder = codec.name, prepared_folder(config)
    info, index = open_index(folder, name)
    verify_shards(folder, index.shards, cores, name, whole=False)
    parallel = max(1, min(config.parallel_transforms, cores))
    return ShardedDataset(info, codec, *load_files(folder, index, name), parallel)


def prepared_folder(config: DatasetConfig) -> Path:
    """Return the folder of a prepared dataset. Raises DatasetError if none is given."""
    if config.path is None:
        raise DatasetError(
            f"dataset '{config.name}': no folder is given; pass --set dataset.path=FOLDER"
        )
    return config.path


@dataclass(frozen=True)
class SampleFiles:
    """The samples of one part, each of which is a file within a shard."""

    dataset: str
    folder: Path
    shards: Sequence[Shard]
    sizes: Sizes

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(shard.samples for shard in self.shards)]

    @cached_property
    def _offsets(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.sizes)])

    def locate(self, place: int) -> tuple[int, int, int]:
        """Return a sample's shard number, and its offset and size there in bytes."""
        number = bisect_right(self._starts, place) - 1
        offset = int(self._offsets[place] - self._offsets[self._starts[number]])
        return number, offset, int(self.sizes[place])

    def read(self, place: int, decode: Callable[[memoryview], T]) -> T:
        """Decode the sample at a position.

        Its shard is opened each time: a sample has millions of bytes, and the order is random.

        Raises:
            DatasetError: the sample cannot be read or is broken.
        """
        number, offset, size = self.locate(place)
        path = self.folder / self.shards[number].file
        where = f"{self.folder} failed: {path.name}, the sample at byte {offset}"
        what = f"dataset '{self.dataset}': reading {where}"
        with restated(what, DatasetError, "; prepare it again", caught=(OSError, ValueError)):
            content = _read_part(path, offset, size)
            if len(content) < size:
                raise ValueError("it is truncated")
            return decode(content.data)


class _Buffer(threading.local):
    """Read buffer of a thread.

    It is reused because the kernel must clear new memory, which takes longer than reading 56 MB
    into it.
    """

    bytes = np.empty(0, np.uint8)


_buffer = _Buffer()


def _read_part(path: Path, offset: int, size: int) -> NDArray[np.uint8]:
    """Return a part of a file, which is shorter at the end of the file. Raises OSError.

    The bytes are valid until the next call in this thread.
    """
    if len(_buffer.bytes) < size:
        _buffer.bytes = np.empty(size, np.uint8)
    content = _buffer.bytes[:size]
    with path.open("rb", buffering=0) as file:
        return content[: os.preadv(file.fileno(), [content.data], offset)]


@dataclass(frozen=True)
class ShardedDataset:
    """The samples of a prepared folder."""

    info: DatasetInfo
    codec: Codec
    training: SampleFiles
    held_out: SampleFiles
    parallel: int
    """Number of samples decoded concurrently; no sample depends on it."""

    def train(self, epoch: int, batch_size: int, seed: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every training sample once, in the order of (seed, epoch).

        Raises:
            DatasetError: during iteration, if a shard is damaged.
        """
        order = rng.permutation(self.info.train_samples, Purpose.ORDER, seed, epoch)
        return self._batches(self.training, order, batch_size, part)

    def validation(self, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every validation sample once, in the shards' order. Raises like ``train``."""
        order = np.arange(self.info.validation_samples)
        return self._batches(self.held_out, order, batch_size, part)

    def _batches(
        self, files: SampleFiles, order: NDArray[np.intp], batch_size: int, part: Part
    ) -> Iterator[Batch]:
        def fill(place: int, batch: Batch, at: int) -> None:
            files.read(place, lambda content: self.codec.decode(content, batch, at))

        parts = (own.tolist() for own in rank_parts(order, batch_size, part))
        return filled(parts, partial(empty_batch, self.info), fill, self.parallel)


class Verification(NamedTuple):
    """The result of verifying a prepared folder."""

    files: int
    """Number of files that were read."""
    samples: int
    """Number of intact samples among those read."""
    broken: tuple[str, ...]
    """One line for each broken file."""


def verify(
    codec: Codec, folder: Path, threads: int, progress: ShowProgress = not_shown
) -> Verification:
    """Check every file of a prepared folder and, if none is broken, the dataset's SHA-256.

    Args:
        codec: format of the samples.
        folder: folder created by ``aiperf data prepare``.
        threads: number of shards read concurrently.
        progress: shows the progress.

    Raises:
        DatasetError: the folder's descriptions cannot be read or are from different preparations.
    """
    name = codec.name
    info, index = open_index(folder, name)
    meter = Meter(progress, "verifying", len(index.shards), "shards")
    lines, broken = list[tuple[str, str]](), list[str]()
    for part, files in zip(PARTS, load_files(folder, index, name), strict=True):
        starts = accumulate((shard.samples for shard in files.shards), initial=0)
        jobs, check = zip(files.shards, starts, strict=False), partial(_check_shard, codec, files)
        for digests, problem in in_threads(check, jobs, threads, meter):
            lines += [(part, digest) for digest in digests]
            broken += [problem] if problem else []
    if not broken and sha256_of(lines) != info.sha256:
        broken.append(
            f"{folder / MANIFEST} states the SHA-256 {info.sha256[:12]}, that of the samples is "
            f"{sha256_of(lines)[:12]}; prepare the dataset again"
        )
    return Verification(len(index.shards) + 3, len(lines), tuple(broken))


def _check_shard(
    codec: Codec, files: SampleFiles, job: tuple[Shard, int], stopped: threading.Event
) -> tuple[list[str], str | None]:
    """Return the digests of a shard's samples, and the first problem or None.

    A job is a shard and the place of its first sample.
    """
    (shard, start), digests = job, list[str]()
    try:
        verify_shards(files.folder, [shard], 1, codec.name, whole=True)
        for place in range(start, start + shard.samples):
            if stopped.is_set():
                break
            digests.append(files.read(place, codec.sha256))
    except DatasetError as error:
        return digests, str(error)
    return digests, None
