"""From the official files, a year each, to shards of maps that can be read one by one.

The last year is held out: which maps the benchmark's paper held out is not known. A shard is a
TFRecord file of some maps of one year.

The dataset's SHA-256 (``sharded.writing``) is that of the maps and their boxes, each part by the
sorted names of its files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.extremeweather.samples import BOX, NAME, content_bytes, sha256_of
from aiperf_hpc.replica.data.extremeweather.source import Year, opened, sample_of, years_of
from aiperf_hpc.replica.data.sharded.writing import (
    PARTS,
    Described,
    Store,
    Stored,
    describe,
    write_shards,
)
from aiperf_hpc.replica.data.sharded.writing import sha256_of as dataset_sha256
from aiperf_hpc.replica.data.staging import Options
from aiperf_hpc.replica.data.tfrecord import OVERHEAD, write_record
from aiperf_hpc.replica.data.unfinished import Plan, check_target, resumed
from aiperf_hpc.replica.data.weather.boxes import MOST_BOXES
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

    @property
    def samples(self) -> int:
        return self.last - self.first

    @property
    def size(self) -> int:
        return self.samples * (content_bytes(self.year.shape) + OVERHEAD)

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
        boxes = TensorSpec(shape=(MOST_BOXES, BOX), dtype="int32")
        inputs = {"image": TensorSpec(shape=years[0].shape), "boxes": boxes}
        written = write_shards(work, jobs, _samples, "maps", options)
        return describe(work.dataset, jobs, written, Described(NAME, inputs, {"boxes": boxes}))


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


def _samples(job: _Job) -> Generator[Store, None, None]:
    with opened(job.year.path) as (images, rows):
        for number in range(job.first, job.last):
            yield partial(_store, job.year, images, rows, number)


def _store(year: Year, images: Any, rows: Any, number: int, shard: BinaryIO) -> Stored:  # noqa: ANN401
    content = sample_of(year.path, images, rows, number).content
    write_record(shard, content)
    return Stored(len(content) + OVERHEAD, sha256_of(content))
