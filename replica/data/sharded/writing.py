"""Writing shards of records, those of an interrupted preparation kept, and what describes them.

The dataset's SHA-256 is taken over one line a sample, the training samples first, in the order of
the shards: ``<part> <SHA-256 of the sample>`` with a tab between and a newline at the end; part is
train or validation.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, TypeVar

from aiperf_hpc.datasets.manifest import save_dataset_manifest
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.jobs import in_threads
from aiperf_hpc.replica.data.progress import Meter
from aiperf_hpc.replica.data.shards import ShardIndex, describe_shard, save_index, save_sizes
from aiperf_hpc.replica.data.staging import Options, check_space
from aiperf_hpc.replica.data.unfinished import Unfinished
from aiperf_hpc.replica.data.written_shards import Refusals, ShardJob, Written, finished, note
from aiperf_hpc.trial import DatasetInfo, TensorSpec

PARTS = ("train", "validation")


class RecordJob(ShardJob, Protocol):
    """A shard that is to be written."""

    @property
    def part(self) -> str:
        """One of ``PARTS``."""
        ...

    @property
    def samples(self) -> int: ...

    @property
    def size(self) -> int:
        """About how many bytes it will have. Raises DatasetError."""
        ...


J = TypeVar("J", bound=RecordJob)


class Stored(NamedTuple):
    """A sample that was put into a shard."""

    size: int
    """Bytes of its record."""
    sha256: str
    """Of its numbers."""
    converted: str | None = None
    """What its source was, where that is not stored as it is."""


Store = Callable[[BinaryIO], Stored]
"""Checks a sample and appends its record to a shard; raises DatasetError before it does."""


def write_shards(
    work: Unfinished,
    jobs: Sequence[J],
    samples_of: Callable[[J], Generator[Store, None, None]],
    unit: str,
    options: Options,
) -> dict[str, Written]:
    """Write all shards that are not kept from before; return all of them by their files.

    Args:
        work: the preparation.
        jobs: all shards.
        samples_of: yields what stores each sample of a shard. Every one is looked at, even where
            some cannot be stored.
        unit: what samples are, in the plural.
        options: the preparation's.

    Raises:
        DatasetError: samples cannot be stored, each of which is named, or there is no space.
    """
    written = kept_shards(work, jobs, unit, options)
    check_space(work.root, sum(job.size for job in jobs if job.file not in written))
    return write_missing(work, jobs, written, samples_of, unit, options)


def kept_shards(
    work: Unfinished, jobs: Sequence[RecordJob], unit: str, options: Options
) -> dict[str, Written]:
    """Return the shards that an interrupted preparation has finished, by their files."""
    noted = len(work.finished())
    if not noted:
        return {}
    meter = Meter(options.progress, "checking", noted, "finished shards")
    kept = finished(work, jobs, options.cores, meter)
    line = f"going on in {work.root}: {len(kept)} of {len(jobs)} shards are kept"
    if len(kept) < noted:
        line += f"; {noted - len(kept)} with changed {unit} or damage made anew"
    options.report(line)
    return kept


def write_missing(
    work: Unfinished,
    jobs: Sequence[J],
    kept: Mapping[str, Written],
    samples_of: Callable[[J], Generator[Store, None, None]],
    unit: str,
    options: Options,
) -> dict[str, Written]:
    """Write the shards that are not kept; return all. Raises and takes as ``write_shards``."""
    written = dict(kept)
    left = [job for job in jobs if job.file not in written]
    total, missing = (sum(job.samples for job in some) for some in (jobs, left))
    meter = Meter(options.progress, "preparing", total, unit, kept=total - missing)
    refusals = Refusals(options.complain, unit)

    def write(job: J, stopped: threading.Event) -> tuple[Written | None, list[str]]:
        return _write(work, job, samples_of(job), meter, stopped)

    for job, (shard, refused) in zip(left, in_threads(write, left, options.cores), strict=True):
        for what in refused:
            refusals.add(what)
        if shard is not None:
            written[job.file] = shard
    refusals.check(total)
    return written


def _write(
    work: Unfinished,
    job: RecordJob,
    samples: Generator[Store, None, None],
    meter: Meter,
    stopped: threading.Event,
) -> tuple[Written | None, list[str]]:
    """Write one shard; return it, or what is wrong with its samples."""
    path, refused, stored = work.dataset / job.file, list[str](), list[Stored]()
    with path.open("wb") as shard, closing(samples):
        for store in samples:
            if stopped.is_set():
                return None, refused  # Nobody asks for it any more.
            meter.add()
            try:
                stored.append(store(shard))
            except DatasetError as error:
                refused.append(str(error))
    if refused:
        path.unlink()
        return None, refused
    converted = {place: each.sha256 for place, each in enumerate(stored) if each.converted}
    written = Written(
        shard=describe_shard(path, len(stored), converted),
        stamp=job.stamp(),
        sizes=tuple(each.size for each in stored),
        sources=tuple(each.sha256 for each in stored),
        converted=Counter(each.converted for each in stored if each.converted),
    )
    note(work, written)
    return written, refused


class Described(NamedTuple):
    """What all samples of a dataset have in common."""

    name: str
    """The dataset's."""
    inputs: Mapping[str, TensorSpec]
    targets: Mapping[str, TensorSpec]
    classes: int | None = None
    """How many there are, where samples or parts of them have one."""


def describe(
    folder: Path, jobs: Sequence[RecordJob], written: Mapping[str, Written], all_have: Described
) -> DatasetInfo:
    """Write what says what the shards in a folder hold, and return it."""
    in_order = [(job, written[job.file]) for job in jobs]
    counts = {part: sum(job.samples for job in jobs if job.part == part) for part in PARTS}
    info = DatasetInfo(
        name=all_have.name,
        sha256=sha256_of((job.part, digest) for job, each in in_order for digest in each.sources),
        inputs=dict(all_have.inputs),
        targets=dict(all_have.targets),
        classes=all_have.classes,
        train_samples=counts["train"],
        validation_samples=counts["validation"],
    )
    save_description(folder, info, in_order)
    return info


def save_description(
    folder: Path, info: DatasetInfo, in_order: Sequence[tuple[RecordJob, Written]]
) -> None:
    """Write what says what the shards in a folder hold, all of them in their order."""
    training, held_out = (
        tuple(each.shard for job, each in in_order if job.part == part) for part in PARTS
    )
    save_sizes(folder, [size for _, each in in_order for size in each.sizes])
    save_index(folder, ShardIndex(dataset_sha256=info.sha256, train=training, validation=held_out))
    save_dataset_manifest(folder, info)


def sha256_of(lines: Iterable[tuple[str, str]]) -> str:
    """Return the SHA-256 of a dataset: of the part and the digest of each sample, in order."""
    digest = hashlib.sha256()
    for part, told in lines:
        digest.update(f"{part}\t{told}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
