"""Writing shards by threads, each finished for itself: the next preparation can go on with it."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from aiperf_hpc.errors import DatasetError, reason_of
from aiperf_hpc.replica.data.imagenet import tfrecord
from aiperf_hpc.replica.data.imagenet.sources import Image, ReadImage
from aiperf_hpc.replica.data.imagenet.stored_image import encode
from aiperf_hpc.replica.data.jobs import in_threads
from aiperf_hpc.replica.data.progress import Meter
from aiperf_hpc.replica.data.shards import describe_shard
from aiperf_hpc.replica.data.unfinished import Unfinished
from aiperf_hpc.replica.data.written_shards import Refusals, Written, note
from aiperf_hpc.trial import Stored


class Job(NamedTuple):
    """A shard that is to be written."""

    part: str
    file: str
    images: Sequence[Image]

    def stamp(self) -> str:
        """Return what changes when one of the images does: names, labels, sizes, times."""
        digest = hashlib.sha256()
        for image in self.images:
            line = f"{image.name}\t{image.label}\t{image.size}\t{image.modified}\n"
            digest.update(line.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()


class _Stored(NamedTuple):
    """The bytes of an image's record, its digest, and what it was if it was converted."""

    size: int
    sha256: str
    """Digest of the source file if that is stored or was converted, else of the stored image."""
    converted: str | None


class ShardWriter:
    """Writes shards, and looks at every image even where some cannot be stored."""

    def __init__(self, work: Unfinished, read: ReadImage, stored: Stored, meter: Meter) -> None:
        self._work = work
        self._read = read
        self._format: Stored = stored
        self._meter = meter

    def write(
        self, jobs: Sequence[Job], threads: int, refusals: Refusals
    ) -> Iterator[tuple[Job, Written]]:
        """Yield the shards that could be written, in their order. Raises OSError."""
        for job, (written, refused) in zip(
            jobs, in_threads(self._shard, jobs, threads), strict=True
        ):
            for what in refused:
                refusals.add(what)
            if written is not None:
                yield job, written

    def _shard(self, job: Job, stopped: threading.Event) -> tuple[Written | None, list[str]]:
        """Write one shard; return it, or what is wrong with its images."""
        refused: list[str] = []
        path = self._work.dataset / job.file
        with path.open("wb") as file:
            stored = list(self._stored(job, file, stopped, refused))
        if stopped.is_set():
            return None, refused  # Nobody asks for it any more.
        if refused:
            path.unlink()
            return None, refused
        written = Written(
            shard=describe_shard(path, len(stored), _converted(stored)),
            stamp=job.stamp(),
            sizes=tuple(each.size for each in stored),
            sources=tuple(each.sha256 for each in stored),
            converted=Counter(each.converted for each in stored if each.converted),
        )
        note(self._work, written)
        return written, refused

    def _stored(
        self, job: Job, file: BinaryIO, stopped: threading.Event, refused: list[str]
    ) -> Iterator[_Stored]:
        """Write a shard's images until one is refused; look at the others all the same."""
        for image in job.images:
            if stopped.is_set():
                return
            self._meter.add()
            try:
                source, encoded, kind = self._image(image)
            except DatasetError as error:
                refused.append(str(error))
            if not refused:
                content = tfrecord.pack(tfrecord.LabelledImage(encoded, image.label, image.name))
                tfrecord.write_record(file, content)
                size = len(content) + tfrecord.OVERHEAD
                digest = hashlib.sha256(source if kind else encoded).hexdigest()
                yield _Stored(size, digest, kind)

    def _image(self, image: Image) -> tuple[bytes, bytes, str | None]:
        """Return an image's file, what is stored of it, and what it was. Raises DatasetError."""
        try:
            source = self._read(image)
        except OSError as error:
            raise DatasetError(f"cannot read {image.place}: {reason_of(error)}") from None
        try:
            return source, *encode(source, self._format)
        except ValueError as error:
            raise DatasetError(f"{image.place} is corrupt: {error}") from None


def _converted(stored: Sequence[_Stored]) -> dict[int, str]:
    """Return the digests of source files that were converted, by their places."""
    return {place: each.sha256 for place, each in enumerate(stored) if each.converted}


def sha256_of(parts: Iterable[tuple[str, Iterable[tuple[str, int, str]]]], stored: Stored) -> str:
    """Return the SHA-256 of a dataset: of its format, unless that is ``jpeg``, and of the name,
    label and digest of each image of its parts."""
    digest = hashlib.sha256(b"" if stored == "jpeg" else f"stored\t{stored}\n".encode())
    for part, images in parts:
        for name, label, sha256 in sorted(images):
            line = f"{part}\t{name}\t{label}\t{sha256}\n"
            digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
