"""From files of one sample each to shards of several.

A shard is what is stored of its samples, one behind the other; a TFRecord file. Which samples it
has, and where, follows from the sorted names alone.

The dataset's SHA-256 (``writing``) is that of its numbers, however they were stored, each part by
its files' sorted names.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, TypeVar

from aiperf_hpc.errors import DatasetError, reason_of
from aiperf_hpc.replica.data.sharded.writing import (
    PARTS,
    Described,
    Store,
    Stored,
    describe,
    sha256_of,
    write_shards,
)
from aiperf_hpc.replica.data.staging import Options
from aiperf_hpc.replica.data.unfinished import Plan, check_target, resumed
from aiperf_hpc.trial import DatasetInfo, TensorSpec

T = TypeVar("T")


class Kind(Protocol):
    """What all samples of a dataset have in common; equal kinds are one, and have words."""

    @property
    def inputs(self) -> dict[str, TensorSpec]: ...

    @property
    def targets(self) -> dict[str, TensorSpec]: ...

    @property
    def classes(self) -> int | None:
        """How many there are, where samples or parts of them have one."""
        ...


class Loaded(NamedTuple):
    """A sample as it is to be stored."""

    content: bytes
    """A TFRecord file of it."""
    sha256: str
    """Of its numbers."""
    kind: Kind


class SourceFormat(Protocol):
    """How the samples of a dataset come: a file each, in ``train/`` and ``validation/``."""

    @property
    def name(self) -> str:
        """The dataset's name."""
        ...

    @property
    def unit(self) -> str:
        """What its samples are, in the plural."""
        ...

    @property
    def pattern(self) -> str:
        """The names of its files, as a shell has them."""
        ...

    @property
    def shard_samples(self) -> int:
        """Samples of a shard when the number of shards is not given."""
        ...

    def load(self, path: Path) -> Loaded:
        """Read a file, checked. Raises OSError, and ValueError with what is wrong, in words."""
        ...


class _Job(NamedTuple):
    """A shard that is to be written."""

    part: str
    file: str
    sources: Sequence[Path]

    @property
    def samples(self) -> int:
        return len(self.sources)

    @property
    def size(self) -> int:
        return sum(_stat(path).st_size for path in self.sources)

    def stamp(self) -> str:
        """Return what changes when one of the files does: names, sizes, times."""
        lines = (
            f"{each.name}\t{(found := _stat(each)).st_size}\t{found.st_mtime_ns}\n"
            for each in self.sources
        )
        return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def prepare(
    form: SourceFormat, source: Path, target: Path, options: Options | None = None
) -> DatasetInfo:
    """Make the folder ``target`` of shards out of files of a sample each.

    Every sample is read and checked once. Shards that are finished are kept when the preparation
    is interrupted; the next one of the same ``target`` goes on with them.

    Args:
        form: how the samples come.
        source: a folder with ``train/`` and ``validation/``, a file a sample in each.
        target: where the dataset is to be.
        options: ``shards`` is the number of training shards; the validation samples get as many
            as makes their shards as large.

    Raises:
        DatasetError: ``source`` is no such folder, files are damaged or of two variants (each is
            named, through ``complain`` if there are several), ``target`` is not empty or cannot be
            written, there is not enough space, or what an interrupted preparation has left is of
            something else.
    """
    options = options or Options()
    check_target(target)
    files = {part: _files(form, source / part) for part in PARTS}
    if target.resolve() == source.resolve() or source.resolve() in target.resolve().parents:
        raise DatasetError(f"cannot write the dataset to {target}: it lies in its source {source}")
    kind = _load(form, files["train"][0]).kind
    counts = len(files["train"]), len(files["validation"])
    shards = shard_counts(*counts, options.shards, form.shard_samples)
    jobs = [
        _Job(*each) for part, number in zip(PARTS, shards, strict=True)
        for each in cut(part, files[part], number)
    ]  # fmt: skip
    plan = Plan(
        dataset=form.name, source=str(source), names_sha256=_names_sha256(jobs), shards=shards
    )
    with resumed(target, plan, options) as work:
        options.report(
            f"{source}: {counts[0]} + {counts[1]} {form.unit} of {kind}, for {shards[0]} + "
            f"{shards[1]} shards"
        )
        written = write_shards(work, jobs, partial(_samples, form, kind), "samples", options)
        all_have = Described(form.name, kind.inputs, kind.targets, kind.classes)
        return describe(work.dataset, jobs, written, all_have)


def shard_counts(
    training: int, held_out: int, wanted: int | None, each: int, unit: str = "samples"
) -> tuple[int, int]:
    """Return how many shards the training and the validation samples have.

    Raises:
        DatasetError: so many shards are wanted that one would have no sample.
    """
    shards = wanted if wanted is not None else -(-training // each)
    if not 1 <= shards <= training:
        raise DatasetError(f"--shards {shards}: for {training} training {unit}, 1 to {training}")
    return shards, min(held_out, max(1, round(held_out * shards / training)))


def _files(form: SourceFormat, folder: Path) -> list[Path]:
    try:
        found = sorted(path for path in folder.iterdir() if path.match(form.pattern))
    except OSError as error:
        raise DatasetError(
            f"dataset '{form.name}': cannot read {folder}: {reason_of(error)}; the source is a "
            "folder with train/ and validation/"
        ) from None
    found = [path for path in found if path.name[0] != "."]
    if not found:
        raise DatasetError(f"dataset '{form.name}': {folder} has no files named {form.pattern}")
    return found


def _load(form: SourceFormat, path: Path) -> Loaded:
    """Return a file's sample. Raises DatasetError."""
    try:
        return form.load(path)
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {reason_of(error)}") from None
    except ValueError as error:
        raise DatasetError(f"{path}: {error}") from None


def _stat(path: Path) -> os.stat_result:
    """Return what the system says of a sample's file. Raises DatasetError."""
    try:
        return path.stat()
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {reason_of(error)}") from None


def cut(part: str, samples: Sequence[T], shards: int) -> Iterator[tuple[str, str, Sequence[T]]]:
    """Cut samples into shards whose sizes differ by one at most: part, file and samples of each."""
    for shard in range(shards):
        start, end = (len(samples) * edge // shards for edge in (shard, shard + 1))
        yield part, f"{part}-{shard:05d}-of-{shards:05d}", samples[start:end]


def _names_sha256(jobs: Sequence[_Job]) -> str:
    return sha256_of((job.part, source.name) for job in jobs for source in job.sources)


def _samples(form: SourceFormat, kind: Kind, job: _Job) -> Generator[Store, None, None]:
    for source in job.sources:
        yield partial(_store, form, kind, source)


def _store(form: SourceFormat, kind: Kind, source: Path, shard: BinaryIO) -> Stored:
    found = _load(form, source)
    if found.kind != kind:
        raise DatasetError(
            f"{source} is of another variant: {found.kind}, and the first sample {kind}"
        )
    shard.write(found.content)
    return Stored(len(found.content), found.sha256)
