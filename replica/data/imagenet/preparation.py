"""From ImageNet, in whichever layout it lies, to TFRecord shards.

Labels number the sorted names of the training classes from 0, in every layout. The shards, and
all that describes them, depend on the images, their names and the number of shards alone.

The dataset's SHA-256 says which images it is made of, whatever the number of shards. It is taken
over one line an image, the training images first, each part sorted by name:
``<part> <wnid>/<file> <label> <SHA-256 of the source file>`` with tabs between and a newline at
the end; part is train or validation. If images are stored ``resized`` or ``raw``, the first line
is ``stored <format>``, and the SHA-256 of an image is that of what is stored, unless it was only
converted to JPEG.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data import rng
from aiperf_hpc.replica.data.imagenet.archives import save_archives
from aiperf_hpc.replica.data.imagenet.shard_samples import Job, samples_of, sha256_of
from aiperf_hpc.replica.data.imagenet.sources import Listing, Source, open_source
from aiperf_hpc.replica.data.imagenet.stored_image import SIDE
from aiperf_hpc.replica.data.rng import Purpose
from aiperf_hpc.replica.data.sharded.preparation import cut, shard_counts
from aiperf_hpc.replica.data.sharded.writing import (
    PARTS,
    kept_shards,
    save_description,
    write_missing,
)
from aiperf_hpc.replica.data.sharded.writing import sha256_of as dataset_sha256
from aiperf_hpc.replica.data.staging import Options, check_space
from aiperf_hpc.replica.data.unfinished import Plan, Unfinished, check_target, resumed
from aiperf_hpc.replica.data.written_shards import Written
from aiperf_hpc.trial import DatasetInfo, Stored

SHARD_SAMPLES = 1252
"""Images in a shard when the number of shards is not given: 1,024 shards for ILSVRC 2012."""

SAMPLE_SHAPE = (224, 224, 3)
"""The shape that dataset.json records; a run's own image size replaces it."""


def prepare(source: Path, target: Path, options: Options | None = None) -> DatasetInfo:
    """Make the folder ``target`` of TFRecord shards out of ImageNet.

    Every image is decoded once, by a decoder that takes and refuses what those of a run do. Grey
    and RGB JPEG files are stored as they are; others (CMYK, PNG under a JPEG name) are converted
    to RGB JPEG. Other formats of ``options.stored`` resize images (``stored_image``). Shards that
    are finished are kept when the preparation is interrupted; the next one of the same ``target``
    goes on with them.

    Args:
        source: the folder of a layout (``sources``).
        target: where the dataset is to be.
        options: ``shards`` is the number of training shards; the validation images get as many
            as makes their shards as large.

    Raises:
        DatasetError: ``source`` is in no layout, images are corrupt or cannot be read (each is
            named, through ``complain`` if there are several), ``target`` is not empty or cannot
            be written, there is not enough space, or what an interrupted preparation has left
            is of something else.
    """
    options = options or Options()
    _refuse_around(source, target)
    check_target(target)
    found = open_source(source, options.cores, options.progress)
    listing = found.listing
    _refuse_inside(listing, target)
    counts = len(listing.training), len(listing.validation)
    shards = shard_counts(*counts, options.shards, SHARD_SAMPLES, "images")
    jobs = _jobs(listing, shards, options.stored)
    plan = Plan(
        dataset="imagenet",
        source=str(source),
        names_sha256=_names_sha256(jobs),
        shards=shards,
        stored=options.stored,
    )
    with resumed(target, plan, options) as work:
        options.report(
            f"{source}: {listing.layout}; {counts[0]} + {counts[1]} images of "
            f"{len(listing.wnids)} classes, for {shards[0]} + {shards[1]} shards"
        )
        written = _write(work, found, jobs, options)
        info = _describe(work.dataset, found, jobs, written, options.stored)
    options.report(_conversions(written.values(), options.stored))
    return info


def _write(
    work: Unfinished, source: Source, jobs: Sequence[Job], options: Options
) -> dict[str, Written]:
    """Write all shards that are not kept from before; return all of them by their files."""
    kept = kept_shards(work, jobs, "images", options)
    left = [job for job in jobs if job.file not in kept]
    to_unpack = _to_unpack(work, source) if left else 0
    check_space(work.root, sum(job.size for job in left) + to_unpack)
    with source.opened(work.unpacked, options.cores, options.progress) as read:
        return write_missing(work, jobs, kept, partial(samples_of, read), "images", options)


def _to_unpack(work: Unfinished, source: Source) -> int:
    there = sum(path.stat().st_size for path in work.unpacked.iterdir())
    return max(0, source.unpacked_size - there)


def _describe(
    folder: Path,
    source: Source,
    jobs: Sequence[Job],
    written: Mapping[str, Written],
    stored: Stored,
) -> DatasetInfo:
    """Write what says what the shards in a folder hold, and what they were made from."""
    listing = source.listing
    in_order = [(job, written[job.file]) for job in jobs]
    parts = ((part, _digests(part, in_order)) for part in PARTS)
    info = DatasetInfo.of_labelled_images(
        name="imagenet",
        sha256=sha256_of(parts, stored),
        classes=len(listing.wnids),
        shape=SAMPLE_SHAPE,
        train_samples=len(listing.training),
        validation_samples=len(listing.validation),
    ).model_copy(update={"stored": stored})
    if source.archives:
        save_archives(folder, source.archives)
    save_description(folder, info, in_order)
    return info


def _digests(part: str, written: Sequence[tuple[Job, Written]]) -> Iterator[tuple[str, int, str]]:
    for job, shard in written:
        if job.part == part:
            for image, sha256 in zip(job.images, shard.sources, strict=True):
                yield image.name, image.label, sha256


def _refuse_around(source: Path, target: Path) -> None:
    inner, outer = source.resolve(), target.resolve()
    if inner == outer or outer in inner.parents:
        raise DatasetError(
            f"cannot write the dataset to {target}: its source {source} lies there; "
            "name a new folder"
        )


def _refuse_inside(listing: Listing, target: Path) -> None:
    for folder in listing.folders:
        if folder.resolve() in target.resolve().parents:
            raise DatasetError(
                f"cannot write the dataset to {target}: the source's images lie in {folder}; "
                "name a folder beside it"
            )


def _jobs(listing: Listing, shards: tuple[int, int], stored: Stored) -> list[Job]:
    # Images are listed class by class; unmixed, 16 open shards would hold some 16 classes.
    order = rng.permutation(len(listing.training), Purpose.SPLIT).tolist()
    mixed = [listing.training[place] for place in order]
    parts = zip(PARTS, (mixed, listing.validation), shards, strict=True)
    return [Job(*each, stored) for part in parts for each in cut(*part)]


def _names_sha256(jobs: Sequence[Job]) -> str:
    images = ((job.part, image) for job in jobs for image in job.images)
    return dataset_sha256((part, f"{image.name}\t{image.label}") for part, image in images)


def _conversions(written: Iterable[Written], stored: Stored) -> str:
    converted: Counter[str] = Counter()
    for shard in written:
        converted.update(shard.converted)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(converted.items()))
    if stored == "raw":
        return f"stored as pixels, the shorter side resized to {SIDE} if it is longer"
    at_size = f"converted to RGB JPEG: {kinds}" if converted else "stored as they are"
    if stored == "resized":
        return f"resized to a shorter side of {SIDE} pixels if it is longer; others {at_size}"
    return at_size if converted else f"all images are {at_size}"
