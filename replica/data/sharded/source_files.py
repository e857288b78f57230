"""Sources of one file for each sample, in ``train/`` and ``validation/``.

The samples of a shard and their order follow from the sorted names alone.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

from aiperf_hpc.datasets import read_errors
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.sharded.preparation import (
    PARTS,
    SampleKind,
    Source,
    StoredSample,
    prepare_shards,
    shard_counts,
    shard_jobs,
)
from aiperf_hpc.replica.data.staging import Options, check_target
from aiperf_hpc.trial import DatasetInfo


class LoadedSample(NamedTuple):
    """A sample as it is to be stored."""

    content: bytes
    """A TFRecord file of the sample."""
    sha256: str
    """SHA-256 of its numbers."""
    kind: SampleKind


class FileSource(Source[Path]):
    """The files of a folder's ``train/`` and ``validation/``, all of one kind.

    Raises:
        DatasetError: there are no such files, or the first one is damaged.
    """

    pattern: str
    """Shell pattern of the files' names."""
    shard_samples: int
    """Samples of a shard if the number of shards is not given."""
    noun: str
    """Plural noun for its samples in its summary."""

    def __init__(self, folder: Path) -> None:
        self.files = {part: self._files(folder / part) for part in PARTS}
        self.kind = self._load(self.files["train"][0]).kind

    @abstractmethod
    def load(self, path: Path) -> LoadedSample:
        """Read a file and check it. Raises OSError, and ValueError with what is wrong."""

    @property
    def summary(self) -> str:
        training, held_out = (len(files) for files in self.files.values())
        return f"{training} + {held_out} {self.noun} of {self.kind.text}"

    def name(self, sample: Path) -> str:
        return sample.name

    def size(self, sample: Path) -> int:
        return _stat(sample).st_size

    def stamp(self, sample: Path) -> str:
        found = _stat(sample)
        return f"{sample.name}\t{found.st_size}\t{found.st_mtime_ns}"

    def store(self, sample: Path, shard: BinaryIO) -> StoredSample:
        found = self._load(sample)
        if found.kind != self.kind:
            raise DatasetError(
                f"{sample} is of another variant: {found.kind.text}, and the first sample "
                f"{self.kind.text}"
            )
        shard.write(found.content)
        return StoredSample(len(found.content), found.sha256)

    def _files(self, folder: Path) -> list[Path]:
        layout = "the source is a folder with train/ and validation/"
        with read_errors(folder, self.dataset, layout):
            names = sorted(path for path in folder.iterdir() if path.match(self.pattern))
        found = [path for path in names if path.name[0] != "."]
        if not found:
            raise DatasetError(
                f"dataset '{self.dataset}': {folder} has no files named {self.pattern}"
            )
        return found

    def _load(self, path: Path) -> LoadedSample:
        try:
            with read_errors(path):
                return self.load(path)
        except ValueError as error:
            raise DatasetError(f"{path}: {error}") from None


def _stat(path: Path) -> os.stat_result:
    with read_errors(path):
        return path.stat()


def prepare_files(
    open_source: Callable[[Path], FileSource],
    source: Path,
    target: Path,
    options: Options | None = None,
) -> DatasetInfo:
    """Make the folder ``target`` of shards from files of one sample each.

    Args:
        open_source: the class of the source.
        source: a folder with ``train/`` and ``validation/``.
        target: folder of the dataset.
        options: ``shards`` is the number of training shards; validation shards are as large.

    Raises:
        DatasetError: ``source`` is no such folder or ``target`` lies in it, or as
            ``prepare_shards``.
    """
    options = options or Options()
    check_target(target)
    found = open_source(source)
    if source.resolve() in (target.resolve(), *target.resolve().parents):
        raise DatasetError(f"cannot write the dataset to {target}: it lies in its source {source}")
    training, held_out = (len(files) for files in found.files.values())
    counts = shard_counts(training, held_out, options.shards, found.shard_samples)
    jobs = [
        job
        for (part, files), number in zip(found.files.items(), counts, strict=True)
        for job in shard_jobs(part, files, number)
    ]
    return prepare_shards(found, source, target, jobs, options)[0]
