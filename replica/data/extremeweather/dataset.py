"""A prepared folder of maps as a dataset: records read and scaled by threads."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.dataset_manifest import load_dataset_manifest
from aiperf_hpc.errors import DatasetError, reason_of
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.data.extremeweather import samples
from aiperf_hpc.replica.data.extremeweather.samples import BOX, NAME, Sample, record_bytes, scale
from aiperf_hpc.replica.data.file_parts import read_part
from aiperf_hpc.replica.data.generated import TRAINING, VALIDATION, GeneratedDataset
from aiperf_hpc.replica.data.shards import Shard, ShardIndex, load_index, verify_shards
from aiperf_hpc.replica.data.weather.boxes import MOST_BOXES
from aiperf_hpc.trial import DatasetInfo


def load(config: DatasetConfig, cores: int) -> GeneratedDataset:
    """Open a prepared folder; each shard's size and first bytes are checked.

    Raises:
        DatasetError: no folder is given, it was not prepared, or a shard is missing, truncated
            or not the one that was prepared.
    """
    if config.path is None:
        raise DatasetError(f"dataset '{NAME}': no folder is given; pass --set dataset.path=FOLDER")
    info, index = open_index(config.path)
    shape = info.input_shape("image")
    verify_shards(config.path, (*index.train, *index.validation), max(1, cores), NAME, whole=False)
    parts = {
        TRAINING: Records(config.path, index.train, shape),
        VALIDATION: Records(config.path, index.validation, shape),
    }
    threads = max(1, min(config.parallel_transforms, cores))

    def make(part: int, chosen: NDArray[np.intp]) -> Batch:
        maps = np.empty((len(chosen), *shape), np.float32)
        boxes = np.empty((len(chosen), MOST_BOXES, BOX), np.int32)

        def read(at: int) -> None:
            found = parts[part].read(int(chosen[at]))
            scale(found.fields, maps[at])
            boxes[at] = found.boxes

        with ThreadPoolExecutor(threads, NAME) as pool:
            list(pool.map(read, range(len(chosen))))
        return Batch({"image": maps, "boxes": boxes}, {"boxes": boxes})

    return GeneratedDataset(info, make)


def open_index(folder: Path) -> tuple[DatasetInfo, ShardIndex]:
    """Read what describes a prepared folder.

    Raises:
        DatasetError: it was not prepared, or its descriptions are of two preparations.
    """
    info, index = load_dataset_manifest(folder, NAME), load_index(folder, NAME)
    shards, record = (*index.train, *index.validation), record_bytes(info.input_shape("image"))
    counts = [sum(s.samples for s in part) for part in (index.train, index.validation)]
    if (
        index.dataset_sha256 != info.sha256
        or counts != [info.train_samples, info.validation_samples]
        or any(shard.bytes != shard.samples * record for shard in shards)
    ):
        raise DatasetError(
            f"dataset '{NAME}': dataset.json and shards.json of {folder} are of two preparations; "
            "prepare it again"
        )
    return info, index


@dataclass(frozen=True)
class Records:
    """The maps of one part."""

    folder: Path
    shards: Sequence[Shard]
    shape: tuple[int, ...]

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(shard.samples for shard in self.shards)]

    def read(self, place: int) -> Sample:
        """Return the map at a place, until this thread reads the next. Raises DatasetError.

        Its shard is opened each time: a map has millions of bytes, and they are read at random.
        """
        number, size = bisect_right(self._starts, place) - 1, record_bytes(self.shape)
        path, offset = self.folder / self.shards[number].file, place - self._starts[number]
        try:
            record = read_part(path, offset * size, size)
        except OSError as error:
            raise DatasetError(
                f"dataset '{NAME}': cannot read {path}: {reason_of(error)}"
            ) from None
        if len(record) < size:
            raise DatasetError(f"dataset '{NAME}': {path} is truncated; prepare it again")
        return samples.read(record.data, self.shape)
