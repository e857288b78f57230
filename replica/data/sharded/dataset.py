"""Dataset of a prepared folder of shards: threads read, check and decode samples."""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.errors import DatasetError, reason_of
from aiperf_hpc.replica.data import rng
from aiperf_hpc.replica.data.base import WHOLE, Batch, Part, empty_batch
from aiperf_hpc.replica.data.batching import filled, rank_parts
from aiperf_hpc.replica.data.rng import Purpose
from aiperf_hpc.replica.data.sharded.index import (
    Shard,
    Sizes,
    load_sizes,
    open_index,
    verify_shards,
)
from aiperf_hpc.trial import DatasetInfo

T = TypeVar("T")


class Codec(Protocol):
    """The format of a dataset's samples in shards and in batches."""

    @property
    def name(self) -> str:
        """Name of the dataset."""
        ...

    def decode(self, content: memoryview, batch: Batch, at: int) -> None:
        """Decode a stored sample into its place in a batch.

        Raises:
            ValueError: the sample is damaged or has another shape.
        """
        ...

    def sha256(self, content: memoryview) -> str:
        """Return the SHA-256 of a stored sample's numbers. Raises ValueError like ``decode``."""
        ...


def load(codec: Codec, config: DatasetConfig, cores: int) -> ShardedDataset:
    """Open a prepared folder; each shard's size and first bytes are checked.

    Raises:
        DatasetError: no folder is given, the folder was not prepared, or a shard is missing,
            truncated or not the prepared one.
    """
    name, folder = codec.name, prepared_folder(config)
    info, index = open_index(folder, name)
    verify_shards(folder, index.shards, cores, name, whole=False)
    training, held_out = load_sizes(folder, index, name)
    return ShardedDataset(
        info,
        codec,
        SampleFiles(name, folder, index.train, training),
        SampleFiles(name, folder, index.validation, held_out),
        max(1, min(config.parallel_transforms, cores)),
    )


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
        try:
            content = _read_part(path, offset, size)
            if len(content) < size:
                raise ValueError("it is truncated")
            return decode(content.data)
        except (OSError, ValueError) as error:
            problem = reason_of(error) if isinstance(error, OSError) else error
            raise DatasetError(
                f"dataset '{self.dataset}': reading {self.folder} failed: {path.name}, the sample "
                f"at byte {offset}: {problem}; prepare it again"
            ) from None


class _Buffer(threading.local):
    """Read buffer of a thread.

    It is reused because the kernel must clear new memory, which takes longer than reading 56 MB
    into it.
    """

    def __init__(self) -> None:
        self.bytes = np.empty(0, np.uint8)


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
