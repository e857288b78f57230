"""A prepared folder of shards as a dataset: samples read, checked and decoded by threads."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.errors import DatasetError, reason_of
from aiperf_hpc.replica.data import rng
from aiperf_hpc.replica.data.base import WHOLE, Batch, Part
from aiperf_hpc.replica.data.file_parts import read_part
from aiperf_hpc.replica.data.rng import Purpose
from aiperf_hpc.replica.data.shards import (
    Shard,
    Sizes,
    load_sizes,
    open_index,
    verify_shards,
)
from aiperf_hpc.trial import DatasetInfo

AHEAD = 2
"""Batches made while one is used."""

T = TypeVar("T")


class Codec(Protocol):
    """What a shard stores of a sample, and what a network is given of it."""

    @property
    def name(self) -> str:
        """The dataset's name."""
        ...

    def empty(self, info: DatasetInfo, number: int) -> Batch:
        """Return a batch with room for so many samples."""
        ...

    def decode(self, content: memoryview, batch: Batch, at: int) -> None:
        """Put what is stored of a sample into its place in a batch.

        Raises:
            ValueError: it is damaged, or of another shape; what is wrong, in words.
        """
        ...

    def sha256(self, content: memoryview) -> str:
        """Return the SHA-256 of a sample's numbers. Raises ValueError as ``decode`` does."""
        ...


def load(codec: Codec, config: DatasetConfig, cores: int) -> ShardedDataset:
    """Open a prepared folder; each shard's size and first bytes are checked.

    Raises:
        DatasetError: no folder is given, it was not prepared, or a shard is missing, truncated
            or not the one that was prepared.
    """
    name = codec.name
    if config.path is None:
        raise DatasetError(f"dataset '{name}': no folder is given; pass --set dataset.path=FOLDER")
    info, index = open_index(config.path, name)
    verify_shards(config.path, (*index.train, *index.validation), max(1, cores), name, whole=False)
    training, held_out = load_sizes(config.path, index, name)
    return ShardedDataset(
        info,
        codec,
        Files(name, config.path, index.train, training),
        Files(name, config.path, index.validation, held_out),
        max(1, min(config.parallel_transforms, cores)),
    )


@dataclass(frozen=True)
class Files:
    """The samples of one part, each a file within a shard."""

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

    def read(self, place: int, decode: Callable[[memoryview], T]) -> T:
        """Return what the sample at a place is decoded to.

        Its shard is opened each time: a sample has millions of bytes, and they are read at random.

        Raises:
            DatasetError: it cannot be read or is broken.
        """
        number = bisect_right(self._starts, place) - 1
        path = self.folder / self.shards[number].file
        size = int(self.sizes[place])
        offset = int(self._offsets[place] - self._offsets[self._starts[number]])
        try:
            content = read_part(path, offset, size)
            if len(content) < size:
                raise ValueError("it is truncated")
            return decode(content.data)
        except (OSError, ValueError) as error:
            problem = reason_of(error) if isinstance(error, OSError) else error
            raise DatasetError(
                f"dataset '{self.dataset}': reading {self.folder} failed: {path.name}, the sample "
                f"at byte {offset}: {problem}; prepare it again"
            ) from None


@dataclass(frozen=True)
class ShardedDataset:
    """The samples of a prepared folder."""

    info: DatasetInfo
    codec: Codec
    training: Files
    held_out: Files
    parallel: int
    """Samples decoded at once; none depends on it."""

    def train(self, epoch: int, batch_size: int, seed: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every training sample once, in the order of (seed, epoch).

        Raises:
            DatasetError: while iterating, when a shard turns out to be damaged.
        """
        order = rng.permutation(self.info.train_samples, Purpose.ORDER, seed, epoch)
        return self._batches(self.training, order, batch_size, part)

    def validation(self, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield every validation sample once, in the shards' order. Raises as ``train`` does."""
        order = np.arange(self.info.validation_samples)
        return self._batches(self.held_out, order, batch_size, part)

    def _batches(
        self, files: Files, order: NDArray[np.intp], batch_size: int, part: Part
    ) -> Iterator[Batch]:
        """Decode batches in order, so many of them ahead that no thread waits for a batch."""
        ahead = AHEAD + self.parallel // max(1, batch_size // part.ranks)
        pending: deque[tuple[Batch, list[Future[None]]]] = deque()
        with ThreadPoolExecutor(self.parallel, self.info.name) as pool:
            try:
                for start in range(0, len(order), batch_size):
                    chosen = part.of(order[start : start + batch_size]).tolist()
                    if not chosen:
                        continue
                    batch = self.codec.empty(self.info, len(chosen))
                    work = [
                        pool.submit(self._decode, files, place, batch, at)
                        for at, place in enumerate(chosen)
                    ]
                    pending.append((batch, work))
                    if len(pending) > ahead:
                        yield _finished(*pending.popleft())
                while pending:
                    yield _finished(*pending.popleft())
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _decode(self, files: Files, place: int, batch: Batch, at: int) -> None:
        files.read(place, lambda content: self.codec.decode(content, batch, at))


def _finished(batch: Batch, work: list[Future[None]]) -> Batch:
    for sample in work:
        sample.result()
    return batch
