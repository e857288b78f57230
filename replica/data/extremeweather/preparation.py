"""From the official files, a year each, to shards of maps that can be read one by one.

The last year is held out: which maps the benchmark's paper held out is not known. A shard is a
TFRecord file of some maps of one year.

The dataset's SHA-256 is taken over one line a map, the training maps first, each part by the sorted
names of its files: ``<part> <SHA-256 of the map and its boxes>`` with a tab between and a newline
at the end; part is train or validation.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from aiperf_hpc.dataset_manifest import save_dataset_manifest
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.extremeweather.samples import BOX, NAME, content_bytes, sha256_of
from aiperf_hpc.replica.data.extremeweather.source import Year, opened, sample_of, years_of
from aiperf_hpc.replica.data.jobs import in_threads
from aiperf_hpc.replica.data.progress import Meter
from aiperf_hpc.replica.data.sharded.preparation import PARTS
from aiperf_hpc.replica.data.sharded.preparation import sha256_of as dataset_sha256
from aiperf_hpc.replica.data.shards import ShardIndex, describe_shard, save_index, save_sizes
from aiperf_hpc.replica.data.staging import Options, check_space
from aiperf_hpc.replica.data.tfrecord import OVERHEAD, write_record
from aiperf_hpc.replica.data.unfinished import Plan, Unfinished, check_target, resumed
from aiperf_hpc.replica.data.weather.boxes import MOST_BOXES
from aiperf_hpc.replica.data.written_shards import Refusals, Written, finished, note
from aiperf_hpc.trial import DatasetInfo, TensorSpec

SHARD_SAMPLES = 20
"""Maps of a shard when the number of shards is not given: some gigabyte of the official ones."""


class _Job(NamedTuple):
    """A shard that is to be written."""

    part: str
    file: str
    year: Year
    first: int
    last: int

    def stamp(self) -> str:
        """Return what changes when its file does, or which maps of it these are."""
        found = self.year.path.stat()
        told = (self.year.path.name, found.st_size, found.st_mtime_ns, self.first, self.last)
        return hashlib.sha256("\t".join(map(str, told)).encode()).hexdigest()


def prepare(source: Path, target: Path, options: Options | None = None) -> DatasetInfo:
    """Make the folder ``target`` of shards out of the official files.

    Every map is read and checked once. Shards that are finished are kept when the preparation is
    interrupted; the next one of the same ``target`` goes on with them.

    Args:
        source: a folder with ``climo_YYYY.h5``, two at least.
        target: where the dataset is to be.
        options: ``shards`` is the number of training shards, one a year at least.

    Raises:
        DatasetError: ``source`` is no such folder, files are damaged, maps or boxes are not what
            they should be (each is named, through ``complain`` if there are several), there is no
            box to learn from, or none to find in what is held out, ``target`` is not empty or
            cannot be written, there is not enough space, or what an interrupted preparation has
            left is of something else.
    """
    options = options or Options()
    check_target(target)
    years = years_of(source)
    jobs = _jobs(years, options.shards)
    counts = tuple(sum(job.part == part for job in jobs) for part in PARTS)
    plan = Plan(
        dataset=NAME,
        source=str(source),
        names_sha256=dataset_sha256((year.path.name, str(year.maps)) for year in years),
        shards=(counts[0], counts[1]),
    )
    with resumed(target, plan, options) as work:
        sizes = " x ".join(map(str, years[0].shape))
        options.report(f"{source}: {len(years)} years of maps of {sizes}, {years[-1].path.name} "
                       "held out")  # fmt: skip
        return _describe(work.dataset, jobs, _write(work, jobs, options))


def _jobs(years: Sequence[Year], wanted: int | None) -> list[_Job]:
    training = sum(year.maps for year in years[:-1])
    if wanted is not None and not len(years) - 1 <= wanted <= training:
        raise DatasetError(
            f"--shards {wanted}: for {len(years) - 1} years of {training} training maps, "
            f"{len(years) - 1} to {training}"
        )
    each = SHARD_SAMPLES if wanted is None else -(-training // wanted)
    pieces = {
        "train": _pieces(years[:-1], wanted),
        "validation": [-(-years[-1].maps // each)],
    }
    return [
        _Job(part, f"{part}-{number:05d}-of-{sum(pieces[part]):05d}", *cut)
        for part, chosen in zip(PARTS, (years[:-1], years[-1:]), strict=True)
        for number, cut in enumerate(_cut(chosen, pieces[part]))
    ]


def _pieces(years: Sequence[Year], wanted: int | None) -> list[int]:
    """Return into how many shards each year is cut: so many in all, as equal as can be."""
    if wanted is None:
        return [-(-year.maps // SHARD_SAMPLES) for year in years]
    pieces = [1] * len(years)
    for _ in range(wanted - len(years)):
        largest = max(range(len(years)), key=lambda i: Fraction(years[i].maps, pieces[i]))
        pieces[largest] += 1
    return pieces


def _cut(years: Sequence[Year], pieces: Sequence[int]) -> Iterator[tuple[Year, int, int]]:
    for year, number in zip(years, pieces, strict=True):
        edges = [year.maps * edge // number for edge in range(number + 1)]
        yield from ((year, *edge) for edge in pairwise(edges))


def _write(work: Unfinished, jobs: Sequence[_Job], options: Options) -> dict[str, Written]:
    """Write all shards that are not kept from before; return all of them by their files."""
    written: dict[str, Written] = {}
    if noted := len(work.finished()):
        meter = Meter(options.progress, "checking", noted, "finished shards")
        written = finished(work, jobs, options.cores, meter)
        options.report(f"going on in {work.root}: {len(written)} of {len(jobs)} shards are kept")
    left = [job for job in jobs if job.file not in written]
    record = _record_bytes(jobs[0].year)
    check_space(work.root, sum(job.last - job.first for job in left) * record)
    total, missing = (sum(job.last - job.first for job in some) for some in (jobs, left))
    meter = Meter(options.progress, "preparing", total, "maps", kept=total - missing)
    refusals = Refusals(options.complain, "maps")

    def write(job: _Job, stopped: threading.Event) -> tuple[Written | None, list[str]]:
        return _shard(work, job, meter, stopped)

    for job, (shard, refused) in zip(left, in_threads(write, left, options.cores), strict=True):
        for what in refused:
            refusals.add(what)
        if shard is not None:
            written[job.file] = shard
    refusals.check(total)
    return written


def _shard(
    work: Unfinished, job: _Job, meter: Meter, stopped: threading.Event
) -> tuple[Written | None, list[str]]:
    """Write one shard; return it, or what is wrong with its maps, each of which is looked at."""
    path, refused = work.dataset / job.file, list[str]()
    digests = list[str]()
    with path.open("wb") as shard, opened(job.year.path) as (images, rows):
        for number in range(job.first, job.last):
            if stopped.is_set():
                return None, refused  # Nobody asks for it any more.
            meter.add()
            try:
                sample = sample_of(job.year.path, images, rows, number)
            except DatasetError as error:
                refused.append(str(error))
                continue
            content = sample.content
            write_record(shard, content)
            digests.append(sha256_of(content))
    if refused:
        path.unlink()
        return None, refused
    found = Written(
        shard=describe_shard(path, len(digests)),
        stamp=job.stamp(),
        sizes=(_record_bytes(job.year),) * len(digests),
        sources=tuple(digests),
    )
    note(work, found)
    return found, refused


def _record_bytes(year: Year) -> int:
    return content_bytes(year.shape) + OVERHEAD


def _describe(folder: Path, jobs: Sequence[_Job], written: Mapping[str, Written]) -> DatasetInfo:
    """Write what says what the shards in a folder hold."""
    in_order = [(job, written[job.file]) for job in jobs]
    boxes = TensorSpec(shape=(MOST_BOXES, BOX), dtype="int32")
    counts = {part: sum(j.last - j.first for j in jobs if j.part == part) for part in PARTS}
    info = DatasetInfo(
        name=NAME,
        sha256=dataset_sha256(
            (job.part, digest) for job, each in in_order for digest in each.sources
        ),
        inputs={"image": TensorSpec(shape=jobs[0].year.shape), "boxes": boxes},
        targets={"boxes": boxes},
        train_samples=counts["train"],
        validation_samples=counts["validation"],
    )
    shards = (tuple(each.shard for job, each in in_order if job.part == part) for part in PARTS)
    training, validation = shards
    save_sizes(folder, [size for _, each in in_order for size in each.sizes])
    save_index(
        folder, ShardIndex(dataset_sha256=info.sha256, train=training, validation=validation)
    )
    save_dataset_manifest(folder, info)
    return info
