"""A kind of files, and what reads them: for benchmarks/workload_input.py."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data import load_dataset

FILES, PREPARED = "files", "prepared"
"""The folders of a case: what a benchmark is given, and what is made of it."""

Reader = Callable[[Path], Iterator[int]]
"""Takes the folder of both; yields the samples of each batch."""


class Case(NamedTuple):
    """Files of one benchmark."""

    size: int
    """A volume's side, or a map's rows, in the official files."""
    batch: int
    lay_out: Callable[[Path, int], None]
    """Writes the files of samples of a size, and prepares them."""
    readers: Mapping[str, Reader]


def ours(dataset: str, batch: int, folder: Path) -> Iterator[int]:
    """Read the prepared shards."""
    config = DatasetConfig(name=dataset, path=folder / PREPARED)
    for read in load_dataset(config, len(os.sched_getaffinity(0))).train(1, batch, 0):
        yield read.size
