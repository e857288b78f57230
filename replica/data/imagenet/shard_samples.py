"""What the shards of ImageNet are made of: the images of each, and how one is stored."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import BinaryIO, NamedTuple

from aiperf_hpc.errors import DatasetError, reason_of
from aiperf_hpc.replica.data.imagenet.labelled_image import LabelledImage, pack
from aiperf_hpc.replica.data.imagenet.sources import Image, ReadImage
from aiperf_hpc.replica.data.imagenet.stored_image import encode, stored_bytes
from aiperf_hpc.replica.data.sharded import writing
from aiperf_hpc.replica.data.sharded.writing import Store
from aiperf_hpc.replica.data.tfrecord import OVERHEAD, write_record
from aiperf_hpc.trial import Stored


class Job(NamedTuple):
    """A shard that is to be written."""

    part: str
    file: str
    images: Sequence[Image]
    stored: Stored

    @property
    def samples(self) -> int:
        return len(self.images)

    @property
    def size(self) -> int:
        return sum(stored_bytes(image.size, self.stored) for image in self.images)

    def stamp(self) -> str:
        """Return what changes when one of the images does: names, labels, sizes, times."""
        digest = hashlib.sha256()
        for image in self.images:
            line = f"{image.name}\t{image.label}\t{image.size}\t{image.modified}\n"
            digest.update(line.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()


def samples_of(read: ReadImage, job: Job) -> Generator[Store, None, None]:
    """Yield what stores each image of a shard."""
    for image in job.images:
        yield partial(_store, read, image, job.stored)


def _store(read: ReadImage, image: Image, stored: Stored, shard: BinaryIO) -> writing.Stored:
    """Append an image's record. Its digest is that of the source file if that is stored or was
    converted, else that of the stored image."""
    try:
        source = read(image)
    except OSError as error:
        raise DatasetError(f"cannot read {image.place}: {reason_of(error)}") from None
    try:
        encoded, converted = encode(source, stored)
    except ValueError as error:
        raise DatasetError(f"{image.place} is corrupt: {error}") from None
    content = pack(LabelledImage(encoded, image.label, image.name))
    write_record(shard, content)
    digest = hashlib.sha256(source if converted else encoded).hexdigest()
    return writing.Stored(len(content) + OVERHEAD, digest, converted)


def sha256_of(parts: Iterable[tuple[str, Iterable[tuple[str, int, str]]]], stored: Stored) -> str:
    """Return the SHA-256 of a dataset: of its format, unless that is ``jpeg``, and of the name,
    label and digest of each image of its parts."""
    lines = (
        (part, f"{name}\t{label}\t{sha256}")
        for part, images in parts
        for name, label, sha256 in sorted(images)
    )
    return writing.sha256_of(chain([("stored", stored)] * (stored != "jpeg"), lines))
