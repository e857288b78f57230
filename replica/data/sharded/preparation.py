"""Resumable preparation of shards, which writes the samples of any source as records.

The dataset's SHA-256 covers one line for each sample, training samples first, in the order of the
shards: ``<part> <SHA-256 of the sample>``, separated by a tab and followed by a newline; the part
is train or validation.
"""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Generic, NamedTuple, TypeVar

from aiperf_hpc.datasets import read_errors, save_dataset_manifest, stat_of
from aiperf_hpc.errors import DatasetError, restated
from aiperf_hpc.replica.data import staging
from aiperf_hpc.replica.data.progress import Meter, in_threads
from aiperf_hpc.replica.data.sharded.dataset import (
    PARTS,
    Shard,
    ShardIndex,
    describe_shard,
    save_index,
    save_sizes,
    sha256_of,
    verify_shards,
)
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.trial import DatasetInfo, TensorSpec, Value

S = TypeVar("S")


class StoredSample(NamedTuple):
    """A sample that was written to a shard."""

    size: int
    """Size of the sample's record in bytes."""
    sha256: str
    """SHA-256 of the sample's numbers."""
    converted: str | None = None
    """Format of the source, unless it is stored unchanged."""


class ShardJob(NamedTuple, Generic[S]):
    """A shard to be written."""

    part: str
    """One of ``PARTS``."""
    file: str
    samples: Sequence[S]


class WrittenShard(Value):
    """The note of a finished shard."""

    shard: Shard
    stamp: str
    """Digest of the samples' stamps when the shard was written."""
    sizes: tuple[int, ...]
    """Size of each record in bytes."""
    sources: tuple[str, ...]
    """SHA-256 of each source file, or of each stored image if the format resizes images."""
    converted: dict[str, int] = {}
    """Number of converted samples by the format of their sources."""


Written = Sequence[tuple[ShardJob[S], WrittenShard]]


class SampleKind(NamedTuple):
    """Common properties of a dataset's samples."""

    text: str
    """Description for messages."""
    inputs: dict[str, TensorSpec]
    targets: dict[str, TensorSpec]
    classes: int | None = None
    """Number of classes, if samples or parts of samples have a class."""


class Source(ABC, Generic[S]):
    """The samples that a dataset is prepared from."""

    dataset: str
    """Name of the dataset."""
    unit = "samples"
    """Plural noun for the samples."""
    kind: SampleKind
    folders: tuple[Path, ...] = ()
    """Folders of the samples, in which no dataset may be prepared."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """Description of the source for messages."""

    @abstractmethod
    def jobs(self, shards: int | None) -> list[ShardJob[S]]:
        """Divide the samples into shards.

        Args:
            shards: number of training shards, or None for the default.

        Raises:
            DatasetError: this number of shards is not possible.
        """

    @abstractmethod
    def name(self, sample: S) -> str:
        """Return the text that identifies a sample in its part, with its label if it has one."""

    @abstractmethod
    def size(self, sample: S) -> int:
        """Return a sample's approximate size in a shard in bytes. Raises DatasetError."""

    @abstractmethod
    def stamp(self, sample: S) -> str:
        """Return a text that changes whenever the sample changes. Raises DatasetError."""

    @abstractmethod
    def store(self, sample: S, shard: BinaryIO) -> StoredSample:
        """Check a sample and append its record to a shard. Raises DatasetError before writing."""

    @property
    def unpacked_size(self) -> int:
        """Extra bytes on disk that the source needs for reading in any order."""
        return 0

    @contextmanager
    def opened(self, unpacked: Path, options: staging.Options) -> Iterator[None]:
        """Open the source for calls of ``store`` by threads.

        Args:
            unpacked: path of a folder for unpacked files; finished files there are reused.
            options: number of threads, and progress display.
        """
        yield

    def describe(self, folder: Path, written: Written[S]) -> DatasetInfo:
        """Return the description of the dataset from all its written shards, in their order."""
        counts = {
            part: sum(len(job.samples) for job, _ in written if job.part == part) for part in PARTS
        }
        return DatasetInfo(
            name=self.dataset,
            sha256=sha256_of((job.part, digest) for job, w in written for digest in w.sources),
            inputs=self.kind.inputs,
            targets=self.kind.targets,
            classes=self.kind.classes,
            train_samples=counts["train"],
            validation_samples=counts["validation"],
        )

    def remark(self, written: Written[S]) -> str:
        """Return a remark on how samples were stored, or an empty string."""
        return ""


class LoadedSample(NamedTuple):
    """A sample ready for storage."""

    content: bytes
    """Content of a TFRecord file with the sample."""
    sha256: str
    """SHA-256 of the sample's numbers."""
    kind: SampleKind


class FileSource(Source[Path]):
    """The files of a folder's ``train/`` and ``validation/``, all of one kind.

    Each file has one sample. The samples of a shard and their order depend only on the sorted
    names.

    Raises:
        DatasetError: there are no such files, or the first file is damaged.
    """

    pattern: str
    """Shell pattern of the files' names."""
    shard_samples: int
    """Default number of samples per shard."""
    noun: str
    """Plural noun for the samples in the summary."""

    def __init__(self, folder: Path, options: staging.Options) -> None:
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
        return stat_of(sample).st_size

    def stamp(self, sample: Path) -> str:
        found = stat_of(sample)
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


def prepare_shards(
    open_source: Callable[[Path, staging.Options], Source[S]],
    path: Path,
    target: Path,
    options: staging.Options | None = None,
) -> DatasetInfo:
    """Write shards and their descriptions into a new folder ``target``.

    Every sample is read and checked once. Finished shards are kept if the preparation is
    interrupted; the next preparation of the same ``target`` resumes with them.

    Args:
        open_source: opens the source; raises DatasetError if the source is invalid.
        path: path of the source's folder.
        target: path of the dataset's folder.
        options: numbers of shards and threads, and display of lines and progress.

    Raises:
        DatasetError: the source cannot be opened, samples are corrupt or cannot be read (each is
            named, through ``complain`` if there are several), ``target`` is not empty or cannot
            be written, there is not enough space, or an interrupted preparation had another plan.
    """
    options = options or staging.Options()
    staging.check_target(target)
    source = open_source(path, options)
    for folder in source.folders:
        if folder.resolve() in target.resolve().parents:
            raise DatasetError(
                f"cannot write the dataset to {target}: it is inside its source {folder}; name a "
                "folder elsewhere"
            )
    jobs = source.jobs(options.shards)
    training, held_out = (sum(job.part == part for job in jobs) for part in PARTS)
    plan = staging.Plan(
        dataset=source.dataset,
        source=str(path),
        names_sha256=sha256_of((j.part, source.name(sample)) for j in jobs for sample in j.samples),
        shards=(training, held_out),
        storage_format=options.storage_format,
    )
    with staging.resumed(target, plan, options) as work:
        options.report(f"{path}: {source.summary}, for {training} + {held_out} shards")
        shards = _Preparation(work, source, jobs, options).written()
        written = [(job, shards[job.file]) for job in jobs]
        info = source.describe(work.dataset, written)
        index = ShardIndex(
            dataset_sha256=info.sha256,
            train=tuple(each.shard for job, each in written if job.part == "train"),
            validation=tuple(each.shard for job, each in written if job.part == "validation"),
        )
        save_sizes(work.dataset, [size for _, shard in written for size in shard.sizes])
        save_index(work.dataset, index)
        save_dataset_manifest(work.dataset, info)
    if remark := source.remark(written):
        options.report(remark)
    return info


def even_jobs(
    training: Sequence[S], held_out: Sequence[S], wanted: int | None, each: int, unit: str
) -> list[ShardJob[S]]:
    """Divide samples into shards whose sizes differ by at most one in each part.

    Args:
        training: training samples.
        held_out: validation samples.
        wanted: requested number of training shards, or None.
        each: samples per shard if no number of shards is requested.
        unit: plural noun for samples.

    Raises:
        DatasetError: the requested number of shards is below 1 or above that of training samples.
    """
    total = len(training)
    shards = wanted if wanted is not None else -(-total // each)
    if not 1 <= shards <= total:
        raise DatasetError(f"--shards {shards}: for {total} training {unit}, 1 to {total}")
    held_shards = min(len(held_out), max(1, round(len(held_out) * shards / total)))
    return [*_cut("train", training, shards), *_cut("validation", held_out, held_shards)]


def _cut(part: str, samples: Sequence[S], shards: int) -> list[ShardJob[S]]:
    edges = [len(samples) * edge // shards for edge in range(shards + 1)]
    return numbered_jobs(part, [samples[i:j] for i, j in pairwise(edges)])


def numbered_jobs(part: str, shards: Sequence[Sequence[S]]) -> list[ShardJob[S]]:
    """Return the numbered shards of a part."""
    return [
        ShardJob(part, f"{part}-{number:05d}-of-{len(shards):05d}", samples)
        for number, samples in enumerate(shards)
    ]


@dataclass(frozen=True, slots=True)
class _Preparation(Generic[S]):
    """Writes the shards of a source into the folder of an unfinished preparation."""

    work: staging.Unfinished
    source: Source[S]
    jobs: Sequence[ShardJob[S]]
    options: staging.Options

    def written(self) -> dict[str, WrittenShard]:
        """Write all shards except kept ones; return all shards by their files."""
        work, source, options = self.work, self.source, self.options
        written = self._kept()
        left = [job for job in self.jobs if job.file not in written]
        total, missing = (sum(len(job.samples) for job in some) for some in (self.jobs, left))
        needed = sum(source.size(sample) for job in left for sample in job.samples)
        if left:
            unpacked = sum(path.stat().st_size for path in work.unpacked.iterdir())
            needed += max(0, source.unpacked_size - unpacked)
        staging.check_space(work.root, needed)
        problems, finished = list[str](), total - missing
        with source.opened(work.unpacked, options):
            meter = Meter(options.progress, "preparing", total, source.unit, finished=finished)
            results = in_threads(partial(self._write, meter), left, options.cores)
            for job, (shard, refused) in zip(left, results, strict=True):
                for problem in refused:
                    problems.append(problem)
                    _complain(problems, options.complain)
                if shard is not None:
                    written[job.file] = shard
        if problems:
            raise DatasetError(
                problems[0]
                if len(problems) == 1
                else f"{len(problems)} of {total} {source.unit} are corrupt or cannot be read: "
                "those above; replace or remove them"
            )
        return written

    def _stamp(self, job: ShardJob[S]) -> str:
        """Return the digest of all samples' stamps."""
        lines = "".join(f"{self.source.stamp(sample)}\n" for sample in job.samples)
        return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()

    def _kept(self) -> dict[str, WrittenShard]:
        """Return the finished shards of an interrupted preparation after reading them completely.

        The note of a shard is removed if its samples have changed or the shard is damaged.
        """
        work, options, noted = self.work, self.options, set(self.work.finished())
        if not noted:
            return {}
        meter = Meter(options.progress, "checking", len(noted), "finished shards")
        with_note = [job for job in self.jobs if job.file in noted]
        found = in_threads(self._kept_shard, with_note, options.cores, meter)
        kept = {shard.shard.file: shard for shard in found if shard is not None}
        for file in noted - set(kept):
            work.note(file).unlink()
        line = f"resuming in {work.root}: {len(kept)} of {len(self.jobs)} shards are kept"
        if len(kept) < len(noted):
            unit = self.source.unit
            line += f"; rewriting {len(noted) - len(kept)} with changed {unit} or damage"
        options.report(line)
        return kept

    def _kept_shard(self, job: ShardJob[S], _: threading.Event) -> WrittenShard | None:
        written = staging.read_note(self.work.note(job.file), WrittenShard)
        try:
            if written is None or written.stamp != self._stamp(job):
                return None
            verify_shards(self.work.dataset, [written.shard], 1, "", whole=True)
        except DatasetError:
            return None
        return written

    def _write(
        self, meter: Meter, job: ShardJob[S], stopped: threading.Event
    ) -> tuple[WrittenShard | None, list[str]]:
        """Write a shard. Returns the shard, or the problems of its samples."""
        path, refused, stored = self.work.dataset / job.file, list[str](), list[StoredSample]()
        with path.open("wb") as file:
            for sample in job.samples:
                if stopped.is_set():
                    return None, refused  # The result is no longer needed.
                meter.add()
                try:
                    stored.append(self.source.store(sample, file))
                except DatasetError as error:
                    refused.append(str(error))
        if refused:
            path.unlink()
            return None, refused
        converted = {place: each.sha256 for place, each in enumerate(stored) if each.converted}
        written = WrittenShard(
            shard=describe_shard(path, len(stored), converted),
            stamp=self._stamp(job),
            sizes=tuple(each.size for each in stored),
            sources=tuple(each.sha256 for each in stored),
            converted=Counter(each.converted for each in stored if each.converted),
        )
        write_whole(self.work.note(job.file), written.model_dump_json() + "\n", _not_synced)
        return written, refused


def _complain(problems: Sequence[str], complain: Callable[[str], None]) -> None:
    """Report the last problem; a single problem becomes the error itself."""
    if len(problems) == 2:
        complain(problems[0])
    if len(problems) >= 2:
        complain(problems[-1])


def _not_synced(file: int) -> None:
    """Let the system schedule the write: the checksum detects damage by a power failure."""
