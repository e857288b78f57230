"""Verification of a prepared ImageNet folder: every byte of every file."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from aiperf_hpc.datasets import ARCHIVES_FILE, MANIFEST, load_archives, read_errors
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data import tfrecord
from aiperf_hpc.replica.data.imagenet.sources.base import and_more, sha256_of
from aiperf_hpc.replica.data.imagenet.stored_image import LabelledImage, encode, unpack
from aiperf_hpc.replica.data.progress import Meter, ShowProgress, in_threads, not_shown
from aiperf_hpc.replica.data.sharded import dataset as sharded
from aiperf_hpc.trial import DatasetInfo

ImageDigest = tuple[str, int, str]
"""Name and label of an image, and SHA-256 of its source file."""


class _CheckedShard(NamedTuple):
    """The class of each label in a shard, the shard's images, and a problem or None."""

    classes: dict[int, str]
    images: list[ImageDigest]
    problem: str | None


def verify_folder(
    folder: Path, threads: int, *, decode: bool = False, progress: ShowProgress = not_shown
) -> sharded.Verification:
    """Check every file of a prepared folder.

    The checks of a shard cover its size, its SHA-256, its number of records, the records' own
    checksums, valid labels, and equal classes in names and labels. If no file is broken, the
    dataset's SHA-256 is recomputed from all images.

    Args:
        folder: folder created by ``aiperf data prepare``.
        threads: number of shards read concurrently.
        decode: whether to decode each image too.
        progress: shows the progress.

    Raises:
        DatasetError: dataset.json or shards.json cannot be read, or they are from different
            preparations.
    """
    info, index = sharded.open_index(folder, "imagenet")
    meter = Meter(progress, "verifying", len(index.shards), "shards")
    broken = list(_problems(lambda: sharded.load_files(folder, index, "imagenet")))

    def check(shard: sharded.Shard, stopped: threading.Event) -> _CheckedShard:
        return _check_shard(folder / shard.file, shard, info, decode, stopped)

    known: dict[int, str] = {}
    images = list[ImageDigest]()
    checked = in_threads(check, index.shards, threads, meter)
    for shard, found in zip(index.shards, checked, strict=True):
        problem = found.problem or _contradiction(folder / shard.file, known, found.classes)
        if problem is None:
            known.update(found.classes)
        broken += [problem] if problem else []
        images += found.images
    broken += _problems(lambda: load_archives(folder))
    parts = {"train": images[: info.train_samples], "validation": images[info.train_samples :]}
    if not broken and (sha256 := sha256_of(parts.items(), info.storage_format)) != info.sha256:
        broken.append(
            f"{folder / MANIFEST} states the SHA-256 {info.sha256[:12]}, that of the images is "
            f"{sha256[:12]}; prepare the dataset again"
        )
    files = len(index.shards) + 3 + (folder / ARCHIVES_FILE).exists()
    return sharded.Verification(files, len(images), tuple(broken))


def _problems(read: Callable[[], object]) -> Iterator[str]:
    try:
        read()
    except DatasetError as error:
        yield str(error)


def _check_shard(
    path: Path, shard: sharded.Shard, info: DatasetInfo, decode: bool, stopped: threading.Event
) -> _CheckedShard:
    try:
        sharded.verify_shards(path.parent, [shard], 1, "imagenet", whole=True)
    except DatasetError as error:
        detail = None
        with suppress(OSError):  # The error above includes it.
            detail = tfrecord.damage(path)
        return _CheckedShard({}, [], f"{error} ({detail})" if detail else str(error))
    classes: dict[int, str] = {}
    images, wrong = list[ImageDigest](), list[str]()
    try:
        with read_errors(path), path.open("rb") as file:
            for place, content in enumerate(tfrecord.contents(file.fileno())):
                if stopped.is_set():
                    return _CheckedShard({}, images, None)
                image = unpack(content)
                problem = _check_image(image, info, classes, decode)
                if problem is not None:
                    wrong.append(problem)
                    continue
                source = shard.converted.get(place) or hashlib.sha256(image.encoded).hexdigest()
                images.append((image.name, image.label, source))
    except (DatasetError, ValueError) as error:
        wrong.append(str(error))
    if wrong:
        return _CheckedShard({}, images, and_more(f"{path}: {wrong[0]}", wrong))
    if len(images) != shard.samples:
        return _CheckedShard({}, images, f"{path} has {len(images)} images, not {shard.samples}")
    return _CheckedShard(classes, images, None)


def _check_image(
    image: LabelledImage, info: DatasetInfo, classes: dict[int, str], decode: bool
) -> str | None:
    """Return the problem of an image, or None, and add its class to ``classes``."""
    if not 0 <= image.label < (info.classes or 0):
        return f"{image.name} has the label {image.label}, of {info.classes} classes"
    wnid = image.name.partition("/")[0]
    if classes.setdefault(image.label, wnid) != wnid:
        return f"{image.name} has the label {image.label}, which is that of {classes[image.label]}"
    if decode:
        try:
            again, _ = encode(image.encoded, info.storage_format)
        except ValueError as error:
            return f"{image.name} cannot be decoded: {error}"
        if again != image.encoded:
            return f"{image.name} is not stored as {info.storage_format}"
    return None


def _contradiction(path: Path, known: dict[int, str], found: dict[int, str]) -> str | None:
    """Return how a shard's labels contradict other shards or the order of classes, or None."""
    for label, wnid in found.items():
        if known.get(label, wnid) != wnid:
            return f"{path}: the label {label} is {wnid} here, and {known[label]} in other shards"
    wnids = [wnid for _, wnid in sorted({**found, **known}.items())]
    for later, first in zip(wnids, wnids[1:], strict=False):
        if later >= first:
            return f"{path}: its labels do not follow the sorted classes: {later} before {first}"
    return None
