"""From files of one sample each to shards of several.

A shard is what is stored of its samples, one behind the other; a TFRecord file. Which samples it
has, and where, follows from the sorted names alone.

The dataset's SHA-256 is that of its numbers, however they were stored. It is taken over one line a
sample, the training samples first, each part by its files' sorted names: ``<part> <SHA-256 of the
sample>`` with a tab between and a newline at the end; part is train or validation.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from aiperf_hpc.dataset_manifest import save_dataset_manifest
from aiperf_hpc.errors import DatasetError, reason_of
from aiperf_hpc.replica.data.jobs import in_threads
from aiperf_hpc.replica.data.progress import Meter
from aiperf_hpc.replica.data.shards import ShardIndex, describe_shard, save_index, save_sizes
from aiperf_hpc.replica.data.staging import Options, check_space
from aiperf_hpc.replica.data.unfinished import Plan, Unfinished, check_target, resumed
from aiperf_hpc.replica.data.written_shards import Refusals, Written, finished, note
from aiperf_hpc.trial import DatasetInfo, TensorSpec

PARTS = ("train", "validation")


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
        job for part, number in zip(PARTS, shards, strict=True)
        for job in _cut(part, files[part], number)
    ]  # fmt: skip
    plan = Plan(
        dataset=form.name, source=str(source), names_sha256=_names_sha256(jobs), shards=shards
    )
    with resumed(target, plan, options) as work:
        options.report(
            f"{source}: {counts[0]} + {counts[1]} {form.unit} of {kind}, for {shards[0]} + "
            f"{shards[1]} shards"
        )
        written = _write(work, jobs, form, kind, options)
        return _describe(work.dataset, jobs, written, form.name, kind)


def sha256_of(lines: Iterable[tuple[str, str]]) -> str:
    """Return the SHA-256 of a dataset: of the part and the digest of each sample, in order."""
    digest = hashlib.sha256()
    for part, told in lines:
        digest.update(f"{part}\t{told}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def shard_counts(training: int, held_out: int, wanted: int | None, each: int) -> tuple[int, int]:
    """Return how many shards the training and the validation samples have.

    Raises:
        DatasetError: so many shards are wanted that one would have no sample.
    """
    shards = wanted if wanted is not None else -(-training // each)
    if not 1 <= shards <= training:
        raise DatasetError(f"--shards {shards}: for {training} training samples, 1 to {training}")
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


def _cut(part: str, files: Sequence[Path], shards: int) -> Iterator[_Job]:
    """Cut the files into shards whose sizes differ by one sample at most."""
    for shard in range(shards):
        start, end = (len(files) * edge // shards for edge in (shard, shard + 1))
        yield _Job(part, f"{part}-{shard:05d}-of-{shards:05d}", files[start:end])


def _names_sha256(jobs: Sequence[_Job]) -> str:
    return sha256_of((job.part, source.name) for job in jobs for source in job.sources)


def _write(
    work: Unfinished, jobs: Sequence[_Job], form: SourceFormat, kind: Kind, options: Options
) -> dict[str, Written]:
    """Write all shards that are not kept from before; return all of them by their files."""
    written: dict[str, Written] = {}
    if noted := len(work.finished()):
        meter = Meter(options.progress, "checking", noted, "finished shards")
        written = finished(work, jobs, options.cores, meter)
        options.report(f"going on in {work.root}: {len(written)} of {len(jobs)} shards are kept")
    left = [job for job in jobs if job.file not in written]
    check_space(work.root, sum(_stat(path).st_size for job in left for path in job.sources))
    total = sum(len(job.sources) for job in jobs)
    kept = total - sum(len(job.sources) for job in left)
    meter = Meter(options.progress, "preparing", total, "samples", kept=kept)
    writer = _Writer(work, form, kind, meter)
    refusals = Refusals(options.complain, "samples")
    for job, (shard, refused) in zip(
        left, in_threads(writer.write, left, options.cores), strict=True
    ):
        for what in refused:
            refusals.add(what)
        if shard is not None:
            written[job.file] = shard
    refusals.check(total)
    return written


class _Writer:
    """Writes shards, and looks at every file even where some cannot be stored."""

    def __init__(self, work: Unfinished, form: SourceFormat, kind: Kind, meter: Meter) -> None:
        self._work = work
        self._form = form
        self._kind = kind
        self._meter = meter

    def write(self, job: _Job, stopped: threading.Event) -> tuple[Written | None, list[str]]:
        """Write one shard; return it, or what is wrong with its files."""
        path, refused = self._work.dataset / job.file, list[str]()
        sizes, digests = list[int](), list[str]()
        with path.open("wb") as shard:
            for source in job.sources:
                if stopped.is_set():
                    return None, refused  # Nobody asks for it any more.
                self._meter.add()
                try:
                    found = self._checked(source)
                except DatasetError as error:
                    refused.append(str(error))
                    continue
                shard.write(found.content)
                sizes.append(len(found.content))
                digests.append(found.sha256)
        if refused:
            path.unlink()
            return None, refused
        written = Written(
            shard=describe_shard(path, len(sizes)),
            stamp=job.stamp(),
            sizes=tuple(sizes),
            sources=tuple(digests),
        )
        note(self._work, written)
        return written, refused

    def _checked(self, source: Path) -> Loaded:
        """Return the sample of a file. Raises DatasetError."""
        found = _load(self._form, source)
        if found.kind != self._kind:
            raise DatasetError(
                f"{source} is of another variant: {found.kind}, and the first sample {self._kind}"
            )
        return found


def _describe(
    folder: Path, jobs: Sequence[_Job], written: Mapping[str, Written], name: str, kind: Kind
) -> DatasetInfo:
    """Write what says what the shards in a folder hold."""
    in_order = [(job, written[job.file]) for job in jobs]
    counts = {part: sum(len(job.sources) for job in jobs if job.part == part) for part in PARTS}
    info = DatasetInfo(
        name=name,
        sha256=sha256_of((job.part, digest) for job, each in in_order for digest in each.sources),
        inputs=kind.inputs,
        targets=kind.targets,
        classes=kind.classes,
        train_samples=counts["train"],
        validation_samples=counts["validation"],
    )
    training, held_out = (
        tuple(each.shard for job, each in in_order if job.part == part) for part in PARTS
    )
    save_sizes(folder, [size for _, each in in_order for size in each.sizes])
    save_index(folder, ShardIndex(dataset_sha256=info.sha256, train=training, validation=held_out))
    save_dataset_manifest(folder, info)
    return info
