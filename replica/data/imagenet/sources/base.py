"""Interface of the ImageNet sources of all layouts.

Labels number the sorted names of the training classes from 0 in every layout. The shards and their
descriptions depend only on the images, their names and the number of shards.

The dataset's SHA-256 identifies its images for any number of shards. It covers one line for each
image, training images first, sorted by name within each part:
``<part> <wnid>/<file> <label> <SHA-256 of the source file>``, separated by tabs and followed by a
newline; the part is train or validation. If images are stored ``resized`` or ``raw``, the first
line is ``stored <format>``, and an image's SHA-256 is that of its stored form unless the image was
only converted to JPEG.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

from aiperf_hpc.datasets import read_errors, save_archives
from aiperf_hpc.errors import DatasetError, restated
from aiperf_hpc.replica.data import rng
from aiperf_hpc.replica.data.imagenet import stored_image
from aiperf_hpc.replica.data.rng import Purpose
from aiperf_hpc.replica.data.sharded import dataset as sharded
from aiperf_hpc.replica.data.sharded import preparation
from aiperf_hpc.replica.data.sharded.dataset import PARTS
from aiperf_hpc.replica.data.tfrecord import OVERHEAD, write_record
from aiperf_hpc.trial import DatasetInfo, StorageFormat

SHARD_SAMPLES = 1252
"""Default number of images per shard: 1,024 shards for ILSVRC 2012."""

SAMPLE_SHAPE = (224, 224, 3)
"""Image shape in dataset.json; the image size of a run replaces it."""


class Image(NamedTuple):
    """An image of a source. A tuple of plain values, because there are 1.3 million images."""

    label: int
    name: str
    """Name ``<wnid>/<file>`` in every layout."""
    path: str
    """Path of the file that contains the image."""
    row: int
    """Position in that file; -1 if it is the only image."""
    size: int
    """Size in bytes; approximate if the file contains many images."""
    modified: int
    """Modification time of the file in nanoseconds since 1970."""

    @property
    def wnid(self) -> str:
        """Name of the image's class."""
        return self.name.partition("/")[0]

    @property
    def place(self) -> str:
        """Location of the image for messages."""
        return self.path if self.row < 0 else f"{self.path}, row {self.row}"


@dataclass(kw_only=True, eq=False)
class ImageSource(preparation.Source[Image]):
    """Images in one of the layouts; in this class, each image is a separate file."""

    dataset = "imagenet"
    unit = "images"

    layout: str
    """Description for messages."""
    wnids: Sequence[str]
    """Sorted names of the classes, indexed by label."""
    training: list[Image]
    """Training images, sorted by label and name."""
    validation: list[Image]
    """Validation images, sorted by label and name."""
    folders: tuple[Path, ...] = ()
    storage_format: StorageFormat = "jpeg"
    """Format of the images in shards."""
    archives: dict[str, str] = field(default_factory=dict)
    """MD5 of the official archives that were read, by their file names."""

    def check(self, training: object, validation: object) -> None:
        """Check the images.

        Args:
            training: description of the training images.
            validation: description of the validation images.

        Raises:
            DatasetError: a class has no images, or two images have the same name.
        """
        for part, images in ((training, self.training), (validation, self.validation)):
            found = {image.label for image in images}
            absent = [wnid for label, wnid in enumerate(self.wnids) if label not in found]
            if absent:
                what = f"{part} has no image of the class {absent[0]}"
                raise DatasetError(and_more(what, absent))
            _refuse_duplicates(images, lambda image: image.name)
        # Official numbers are unique: a number in two classes is an image with two labels.
        official = [image for image in self.validation if "/ILSVRC2012_val_" in image.name]
        _refuse_duplicates(official, lambda image: image.name.partition("/")[2])

    @property
    def summary(self) -> str:
        return (
            f"{self.layout}; {len(self.training)} + {len(self.validation)} images of "
            f"{len(self.wnids)} classes"
        )

    def jobs(self, shards: int | None) -> list[preparation.ShardJob[Image]]:
        # Images are listed by class; without mixing, 16 open shards would contain about 16 classes.
        order = rng.permutation(len(self.training), Purpose.SPLIT).tolist()
        mixed = [self.training[place] for place in order]
        return preparation.even_jobs(mixed, self.validation, shards, SHARD_SAMPLES, self.unit)

    def name(self, sample: Image) -> str:
        return f"{sample.name}\t{sample.label}"

    def size(self, sample: Image) -> int:
        return stored_image.stored_bytes(sample.size, self.storage_format)

    def stamp(self, sample: Image) -> str:
        return f"{sample.name}\t{sample.label}\t{sample.size}\t{sample.modified}"

    def read(self, image: Image) -> bytes:
        """Return the content of an image's file. Requires an opened source; thread-safe.

        Raises:
            OSError: the file cannot be read.
            DatasetError: the image has changed.
        """
        return Path(image.path).read_bytes()

    def store(self, sample: Image, shard: BinaryIO) -> preparation.StoredSample:
        """Append an image's record. The digest is that of the source file if it is stored unchanged
        or converted, else that of the stored image."""
        with read_errors(sample.place):
            source = self.read(sample)
        with restated(f"{sample.place} is corrupt", DatasetError, caught=ValueError):
            encoded, converted = stored_image.encode(source, self.storage_format)
        content = stored_image.pack(stored_image.LabelledImage(encoded, sample.label, sample.name))
        write_record(shard, content)
        digest = hashlib.sha256(source if converted else encoded).hexdigest()
        return preparation.StoredSample(len(content) + OVERHEAD, digest, converted)

    def describe(self, folder: Path, written: preparation.Written[Image]) -> DatasetInfo:
        if self.archives:
            save_archives(folder, self.archives)
        return DatasetInfo.of_labelled_images(
            name=self.dataset,
            sha256=sha256_of(
                ((part, _digests(part, written)) for part in PARTS), self.storage_format
            ),
            classes=len(self.wnids),
            shape=SAMPLE_SHAPE,
            train_samples=len(self.training),
            validation_samples=len(self.validation),
        ).model_copy(update={"storage_format": self.storage_format})

    def remark(self, written: preparation.Written[Image]) -> str:
        converted: Counter[str] = Counter()
        for _, shard in written:
            converted.update(shard.converted)
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(converted.items()))
        if self.storage_format == "raw":
            return (
                f"stored as pixels, the shorter side resized to {stored_image.SIDE} if it is longer"
            )
        at_size = f"converted to RGB JPEG: {kinds}" if converted else "stored as they are"
        if self.storage_format == "resized":
            side = stored_image.SIDE
            return f"resized to a shorter side of {side} pixels if it is longer; others {at_size}"
        return at_size if converted else f"all images are {at_size}"


def sha256_of(
    parts: Iterable[tuple[str, Iterable[tuple[str, int, str]]]], storage_format: StorageFormat
) -> str:
    """Return the SHA-256 of a dataset from its format, unless it is ``jpeg``, and the name, label
    and digest of each image of its parts."""
    lines = (
        (part, f"{name}\t{label}\t{sha256}")
        for part, images in parts
        for name, label, sha256 in sorted(images)
    )
    return sharded.sha256_of(
        chain([("stored", storage_format)] * (storage_format != "jpeg"), lines)
    )


def _digests(part: str, written: preparation.Written[Image]) -> Iterator[tuple[str, int, str]]:
    for job, shard in written:
        if job.part == part:
            for image, sha256 in zip(job.samples, shard.sources, strict=True):
                yield image.name, image.label, sha256


def and_more(what: str, all_of: Sequence[object]) -> str:
    """Return the problem of the first of several items, with the number of the others."""
    return what if len(all_of) == 1 else f"{what} (and {len(all_of) - 1} more)"


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """List a folder without hidden files, sorted by name. Raises DatasetError."""
    with read_errors(folder), os.scandir(folder) as found:
        shown = [entry for entry in found if not entry.name.startswith(".")]
    return sorted(shown, key=lambda entry: entry.name)


def _refuse_duplicates(images: Iterable[Image], name: Callable[[Image], str]) -> None:
    seen: dict[str, Image] = {}
    for image in images:
        first = seen.setdefault(name(image), image)
        if first is not image:
            raise DatasetError(
                f"{first.place} and {image.place} have the same name, {name(image)}: "
                "remove one of them"
            )
