"""From the official files, one sample each, to shards of several.

A shard is the files of its samples, byte by byte, one behind the other; that is a TFRecord file
too, compressed where they are. Which samples it has, and where, follows from the sorted names
alone.

The dataset's SHA-256 is that of its numbers, however they were stored. It is taken over one line a
sample, the training samples first, each part by its files' sorted names: ``<part> <SHA-256 of the
counts and the parameters>`` with a tab between and a newline at the end; part is train or
validation.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from aiperf_hpc.dataset_manifest import save_dataset_manifest
from aiperf_hpc.errors import DatasetError, reason_of
from aiperf_hpc.replica.data.cosmoflow import samples
from aiperf_hpc.replica.data.cosmoflow.samples import PARAMETERS, Sample
from aiperf_hpc.replica.data.jobs import in_threads
from aiperf_hpc.replica.data.progress import Meter
from aiperf_hpc.replica.data.shards import ShardIndex, describe_shard, save_index, save_sizes
from aiperf_hpc.replica.data.staging import Options, check_space
from aiperf_hpc.replica.data.unfinished import Plan, Unfinished, check_target, resumed
from aiperf_hpc.replica.data.written_shards import Refusals, Written, finished, note
from aiperf_hpc.trial import DatasetInfo, TensorSpec

NAME = "cosmoflow"
PARTS = ("train", "validation")
SHARD_SAMPLES = 64
"""Samples of a shard when the number of shards is not given: what one universe was cut into."""


class _Job(NamedTuple):
    """A shard that is to be written."""

    part: str
    file: str
    sources: Sequence[Path]

    def stamp(self) -> str:
        """Return what changes when one of the files does: names, sizes, times."""
        lines = (
            f"{each.name}\t{(found := each.stat()).st_size}\t{found.st_mtime_ns}\n"
            for each in self.sources
        )
        return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


class Kind(NamedTuple):
    """What all samples of a dataset have in common."""

    shape: tuple[int, ...]
    compressed: bool

    def __str__(self) -> str:
        sizes = " x ".join(str(size) for size in self.shape)
        return f"{sizes}, {'GZIP' if self.compressed else 'not compressed'}"


def prepare(source: Path, target: Path, options: Options | None = None) -> DatasetInfo:
    """Make the folder ``target`` of shards out of the official files.

    Every sample is read and checked once. Shards that are finished are kept when the preparation
    is interrupted; the next one of the same ``target`` goes on with them.

    Args:
        source: a folder with ``train/`` and ``validation/``, a TFRecord file a sample in each.
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
    files = {part: _files(source / part) for part in PARTS}
    if target.resolve() == source.resolve() or source.resolve() in target.resolve().parents:
        raise DatasetError(f"cannot write the dataset to {target}: it lies in its source {source}")
    kind = _kind_of(files["train"][0])
    shards = _shard_counts(len(files["train"]), len(files["validation"]), options.shards)
    jobs = [
        job for part, number in zip(PARTS, shards, strict=True)
        for job in _cut(part, files[part], number)
    ]  # fmt: skip
    plan = Plan(dataset=NAME, source=str(source), names_sha256=_names_sha256(jobs), shards=shards)
    with resumed(target, plan, options) as work:
        counts = " + ".join(str(len(found)) for found in files.values())
        options.report(
            f"{source}: {counts} volumes of {kind}, for {shards[0]} + {shards[1]} shards"
        )
        written = _write(work, jobs, kind, options)
        return _describe(work.dataset, jobs, written, kind)


def sha256_of(lines: Iterable[tuple[str, str]]) -> str:
    """Return the SHA-256 of a dataset: of the part and the digest of each sample, in order."""
    digest = hashlib.sha256()
    for part, told in lines:
        digest.update(f"{part}\t{told}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _files(folder: Path) -> list[Path]:
    try:
        found = sorted(p for p in folder.iterdir() if ".tfrecord" in p.name and p.name[0] != ".")
    except OSError as error:
        raise DatasetError(
            f"dataset '{NAME}': cannot read {folder}: {reason_of(error)}; the source is a folder "
            "with train/ and validation/"
        ) from None
    if not found:
        raise DatasetError(f"dataset '{NAME}': {folder} has no files named *.tfrecord*")
    return found


def _read(path: Path) -> tuple[bytes, Sample]:
    """Return a file and its sample. Raises DatasetError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {reason_of(error)}") from None
    try:
        return content, samples.read(content)
    except ValueError as error:
        raise DatasetError(f"{path}: {error}") from None


def _kind_of(path: Path) -> Kind:
    content, sample = _read(path)
    return Kind(sample.counts.shape, samples.is_compressed(content))


def _shard_counts(training: int, held_out: int, wanted: int | None) -> tuple[int, int]:
    shards = wanted if wanted is not None else -(-training // SHARD_SAMPLES)
    if not 1 <= shards <= training:
        raise DatasetError(f"--shards {shards}: for {training} training samples, 1 to {training}")
    return shards, min(held_out, max(1, round(held_out * shards / training)))


def _cut(part: str, files: Sequence[Path], shards: int) -> Iterator[_Job]:
    """Cut the files into shards whose sizes differ by one sample at most."""
    for shard in range(shards):
        start, end = (len(files) * edge // shards for edge in (shard, shard + 1))
        yield _Job(part, f"{part}-{shard:05d}-of-{shards:05d}", files[start:end])


def _names_sha256(jobs: Sequence[_Job]) -> str:
    return sha256_of((job.part, source.name) for job in jobs for source in job.sources)


def _write(
    work: Unfinished, jobs: Sequence[_Job], kind: Kind, options: Options
) -> dict[str, Written]:
    """Write all shards that are not kept from before; return all of them by their files."""
    written: dict[str, Written] = {}
    if noted := len(work.finished()):
        meter = Meter(options.progress, "checking", noted, "finished shards")
        written = finished(work, jobs, options.cores, meter)
        options.report(f"going on in {work.root}: {len(written)} of {len(jobs)} shards are kept")
    left = [job for job in jobs if job.file not in written]
    check_space(work.root, sum(path.stat().st_size for job in left for path in job.sources))
    total = sum(len(job.sources) for job in jobs)
    kept = total - sum(len(job.sources) for job in left)
    writer = _Writer(work, kind, Meter(options.progress, "preparing", total, "samples", kept=kept))
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

    def __init__(self, work: Unfinished, kind: Kind, meter: Meter) -> None:
        self._work = work
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
                    content, digest = self._checked(source)
                except DatasetError as error:
                    refused.append(str(error))
                    continue
                shard.write(content)
                sizes.append(len(content))
                digests.append(digest)
        if refused:
            path.unlink()
            return None, refused
        found = Written(
            shard=describe_shard(path, len(sizes)),
            stamp=job.stamp(),
            sizes=tuple(sizes),
            sources=tuple(digests),
        )
        note(self._work, found)
        return found, refused

    def _checked(self, source: Path) -> tuple[bytes, str]:
        """Return a file and the digest of its sample. Raises DatasetError."""
        content, sample = _read(source)
        kind = Kind(sample.counts.shape, samples.is_compressed(content))
        if kind != self._kind:
            raise DatasetError(
                f"{source} is of another variant: {kind}, and the first sample {self._kind}"
            )
        return content, sample.sha256


def _describe(
    folder: Path, jobs: Sequence[_Job], written: Mapping[str, Written], kind: Kind
) -> DatasetInfo:
    """Write what says what the shards in a folder hold."""
    in_order = [(job, written[job.file]) for job in jobs]
    counts = {part: sum(len(job.sources) for job in jobs if job.part == part) for part in PARTS}
    info = DatasetInfo(
        name=NAME,
        sha256=sha256_of((job.part, digest) for job, each in in_order for digest in each.sources),
        inputs={"volume": TensorSpec(shape=kind.shape)},
        targets={"values": TensorSpec(shape=(PARAMETERS,))},
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
