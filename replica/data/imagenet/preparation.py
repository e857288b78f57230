"""Preparing ImageNet, in any of its layouts, as TFRecord shards.

Labels number the sorted names of the training classes from 0, in every layout. The shards, and
their descriptions, depend on the images, their names and the number of shards alone.

The dataset's SHA-256 identifies its images, whatever the number of shards. It is taken over one
line for each image, the training images first, each part sorted by name:
``<part> <wnid>/<file> <label> <SHA-256 of the source file>`` with tabs between and a newline at
the end; part is train or validation. If images are stored ``resized`` or ``raw``, the first line
is ``stored <format>``, and the SHA-256 of an image is that of its stored form, unless it was only
converted to JPEG.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from aiperf_hpc.datasets import read_errors, save_archives
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data import rng
from aiperf_hpc.replica.data.imagenet.sources import Image, ImageSource, ReadImage, open_source
from aiperf_hpc.replica.data.imagenet.stored_image import (
    SIDE,
    LabelledImage,
    encode,
    pack,
    stored_bytes,
)
from aiperf_hpc.replica.data.rng import Purpose
from aiperf_hpc.replica.data.sharded import preparation
from aiperf_hpc.replica.data.sharded.preparation import (
    PARTS,
    ShardJob,
    Source,
    StoredSample,
    Written,
    prepare_shards,
    shard_counts,
    shard_jobs,
)
from aiperf_hpc.replica.data.staging import Options, check_target
from aiperf_hpc.replica.data.tfrecord import OVERHEAD, write_record
from aiperf_hpc.trial import DatasetInfo, Stored

SHARD_SAMPLES = 1252
"""Images in a shard if the number of shards is not given: 1,024 shards for ILSVRC 2012."""

SAMPLE_SHAPE = (224, 224, 3)
"""The shape that dataset.json records; a run's own image size replaces it."""


class ImageNetImages(Source[Image]):
    """The images of a source, in the format that shards store."""

    dataset = "imagenet"
    unit = "images"

    def __init__(self, source: ImageSource, stored: Stored) -> None:
        self._source = source
        self._stored = stored
        self._read: ReadImage | None = None

    @property
    def summary(self) -> str:
        images = self._source.listing
        return (
            f"{images.layout}; {len(images.training)} + {len(images.validation)} images of "
            f"{len(images.wnids)} classes"
        )

    def name(self, sample: Image) -> str:
        return f"{sample.name}\t{sample.label}"

    def size(self, sample: Image) -> int:
        return stored_bytes(sample.size, self._stored)

    def stamp(self, sample: Image) -> str:
        return f"{sample.name}\t{sample.label}\t{sample.size}\t{sample.modified}"

    @property
    def unpacked_size(self) -> int:
        return self._source.unpacked_size

    @contextmanager
    def opened(self, unpacked: Path, options: Options) -> Iterator[None]:
        with self._source.opened(unpacked, options.cores, options.progress) as self._read:
            yield

    def store(self, sample: Image, shard: BinaryIO) -> StoredSample:
        """Append an image's record. Its digest is that of the source file if that is stored or was
        converted, else that of the stored image."""
        assert self._read is not None  # noqa: S101 -- it is called while the source is open
        with read_errors(sample.place):
            source = self._read(sample)
        try:
            encoded, converted = encode(source, self._stored)
        except ValueError as error:
            raise DatasetError(f"{sample.place} is corrupt: {error}") from None
        content = pack(LabelledImage(encoded, sample.label, sample.name))
        write_record(shard, content)
        digest = hashlib.sha256(source if converted else encoded).hexdigest()
        return StoredSample(len(content) + OVERHEAD, digest, converted)

    def describe(self, folder: Path, written: Written[Image]) -> DatasetInfo:
        images = self._source.listing
        if self._source.archives:
            save_archives(folder, self._source.archives)
        return DatasetInfo.of_labelled_images(
            name="imagenet",
            sha256=sha256_of(((part, _digests(part, written)) for part in PARTS), self._stored),
            classes=len(images.wnids),
            shape=SAMPLE_SHAPE,
            train_samples=len(images.training),
            validation_samples=len(images.validation),
        ).model_copy(update={"stored": self._stored})


def prepare(source: Path, target: Path, options: Options | None = None) -> DatasetInfo:
    """Make the folder ``target`` of TFRecord shards from ImageNet.

    Every image is decoded once, by a decoder that accepts and refuses the same files as those of a
    run. Gray and RGB JPEG files are stored as they are; others (CMYK, PNG under a JPEG name) are
    converted to RGB JPEG. Other formats of ``options.stored`` resize images (``stored_image``).

    Args:
        source: the folder of a layout (``sources``).
        target: folder of the dataset.
        options: ``shards`` is the number of training shards; validation shards are as large.

    Raises:
        DatasetError: ``source`` has no known layout, or as ``prepare_shards``.
    """
    options = options or Options()
    _refuse_around(source, target)
    check_target(target)
    found = open_source(source, options.cores, options.progress)
    images = found.listing
    for folder in images.folders:
        if folder.resolve() in target.resolve().parents:
            raise DatasetError(
                f"cannot write the dataset to {target}: the source's images lie in {folder}; "
                "name a folder beside it"
            )
    counts = shard_counts(
        len(images.training), len(images.validation), options.shards, SHARD_SAMPLES, "images"
    )
    # Images are listed class by class; unmixed, 16 open shards would hold some 16 classes.
    order = rng.permutation(len(images.training), Purpose.SPLIT).tolist()
    mixed = [images.training[place] for place in order]
    jobs: list[ShardJob[Image]] = [
        job
        for part in zip(PARTS, (mixed, images.validation), counts, strict=True)
        for job in shard_jobs(*part)
    ]
    samples = ImageNetImages(found, options.stored)
    info, written = prepare_shards(samples, source, target, jobs, options)
    options.report(_conversions(written, options.stored))
    return info


def sha256_of(parts: Iterable[tuple[str, Iterable[tuple[str, int, str]]]], stored: Stored) -> str:
    """Return the SHA-256 of a dataset from its format, unless that is ``jpeg``, and the name, label
    and digest of each image of its parts."""
    lines = (
        (part, f"{name}\t{label}\t{sha256}")
        for part, images in parts
        for name, label, sha256 in sorted(images)
    )
    return preparation.sha256_of(chain([("stored", stored)] * (stored != "jpeg"), lines))


def _digests(part: str, written: Written[Image]) -> Iterator[tuple[str, int, str]]:
    for job, shard in written:
        if job.part == part:
            for image, sha256 in zip(job.samples, shard.sources, strict=True):
                yield image.name, image.label, sha256


def _refuse_around(source: Path, target: Path) -> None:
    inner, outer = source.resolve(), target.resolve()
    if inner == outer or outer in inner.parents:
        raise DatasetError(
            f"cannot write the dataset to {target}: its source {source} lies there; "
            "name a new folder"
        )


def _conversions(written: Written[Image], stored: Stored) -> str:
    converted: Counter[str] = Counter()
    for _, shard in written:
        converted.update(shard.converted)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(converted.items()))
    if stored == "raw":
        return f"stored as pixels, the shorter side resized to {SIDE} if it is longer"
    at_size = f"converted to RGB JPEG: {kinds}" if converted else "stored as they are"
    if stored == "resized":
        return f"resized to a shorter side of {SIDE} pixels if it is longer; others {at_size}"
    return at_size if converted else f"all images are {at_size}"
