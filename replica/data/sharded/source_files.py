"""Sources with one file for each sample, in ``train/`` and ``validation/``.

The samples of a shard and their order depend only on the sorted names.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from pathlib import Path
from typing import BinaryIO, NamedTuple

from aiperf_hpc.datasets import read_errors
from aiperf_hpc.errors import DatasetError, restated
from aiperf_hpc.replica.data.sharded.dataset import PARTS
from aiperf_hpc.replica.data.sharded.preparation import (
    SampleKind,
    ShardJob,
    Source,
    StoredSample,
    even_jobs,
)
from aiperf_hpc.replica.data.staging import Options


class LoadedSample(NamedTuple):
    """A sample ready for storage."""

    content: bytes
    """Content of a TFRecord file with the sample."""
    sha256: str
    """SHA-256 of the sample's numbers."""
    kind: SampleKind


class FileSource(Source[Path]):
    """The files of a folder's ``train/`` and ``validation/``, all of one kind.

    Raises:
        DatasetError: there are no such files, or the first file is damaged.
    """

    pattern: str
    """Shell pattern of the files' names."""
    shard_samples: int
    """Default number of samples per shard."""
    noun: str
    """Plural noun for the samples in the summary."""

    def __init__(self, folder: Path, options: Options) -> None:
        del options
        self.folders = (folder,)
        self.files = {part: self._files(folder / part) for part in PARTS}
        self.kind = self._load(self.files["train"][0]).kind

    @abstractmethod
    def load(self, path: Path) -> LoadedSample:
        """Read a file and check it. Raises OSError, and ValueError if the content is invalid."""

    @property
    def summary(self) -> str:
        training, held_out = (len(files) for files in self.files.values())
        return f"{training} + {held_out} {self.noun} of {self.kind.text}"

    def jobs(self, shards: int | None) -> list[ShardJob[Path]]:
        training, held_out = (self.files[part] for part in PARTS)
        return even_jobs(training, held_out, shards, self.shard_samples, self.unit)

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
        with restated(f"{path}", DatasetError, caught=ValueError), read_errors(path):
            return self.load(path)


def _stat(path: Path) -> os.stat_result:
    with read_errors(path):
        return path.stat()
