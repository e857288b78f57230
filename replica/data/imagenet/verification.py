"""Verifying a prepared ImageNet folder: every file of it, to the last byte."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from aiperf_hpc.datasets.manifest import MANIFEST
from aiperf_hpc.errors import DatasetError, reason_of
from aiperf_hpc.replica.data import tfrecord
from aiperf_hpc.replica.data.imagenet.archives import ARCHIVES, load_archives
from aiperf_hpc.replica.data.imagenet.labelled_image import LabelledImage, unpack
from aiperf_hpc.replica.data.imagenet.shard_samples import sha256_of
from aiperf_hpc.replica.data.imagenet.sources.base import and_more
from aiperf_hpc.replica.data.imagenet.stored_image import encode
from aiperf_hpc.replica.data.jobs import in_threads
from aiperf_hpc.replica.data.progress import Meter, Show, not_shown
from aiperf_hpc.replica.data.sharded.verification import Verification
from aiperf_hpc.replica.data.shards import (
    Shard,
    load_sizes,
    open_index,
    verify_shards,
)
from aiperf_hpc.trial import DatasetInfo

Digested = tuple[str, int, str]
"""An image's name, label and the SHA-256 of its source file."""


class _Found(NamedTuple):
    """What a shard holds: the class of each label, its images, what is wrong."""

    classes: dict[int, str]
    images: list[Digested]
    problem: str | None


def verify_folder(
    folder: Path, threads: int, *, decode: bool = False, progress: Show = not_shown
) -> Verification:
    """Check every file of a prepared folder.

    Of each shard: its size, SHA-256 and number of records, the records' own checksums, that each
    label is one of the dataset's and each name's class is that of its label. Where no file is
    broken, the dataset's SHA-256 is taken again from all images.

    Args:
        folder: of ``aiperf data prepare``.
        threads: how many shards are looked at at once.
        decode: whether each image is decoded too.
        progress: is told how far it is.

    Raises:
        DatasetError: dataset.json or shards.json cannot be read, or they are of two preparations.
    """
    info, index = open_index(folder, "imagenet")
    shards = (*index.train, *index.validation)
    meter = Meter(progress, "verifying", len(shards), "shards")
    broken = list(_problems(lambda: load_sizes(folder, index, "imagenet")))

    def verified(shard: Shard, stopped: threading.Event) -> _Found:
        found = _shard(folder / shard.file, shard, info, decode, stopped)
        meter.add()
        return found

    known: dict[int, str] = {}
    images = list[Digested]()
    for shard, found in zip(shards, in_threads(verified, shards, threads), strict=True):
        problem = found.problem or _contradiction(folder / shard.file, known, found.classes)
        if problem is None:
            known.update(found.classes)
        broken += [problem] if problem else []
        images += found.images
    broken += _problems(lambda: load_archives(folder))
    if not broken:
        broken += _another_digest(folder, info, images)
    files = len(shards) + 3 + (folder / ARCHIVES).exists()
    return Verification(files, len(images), tuple(broken))


def _another_digest(folder: Path, info: DatasetInfo, images: list[Digested]) -> Iterator[str]:
    """Yield what is wrong where dataset.json states another SHA-256 than the images have."""
    parts = {"train": images[: info.train_samples], "validation": images[info.train_samples :]}
    found = sha256_of(parts.items(), info.stored)
    if found != info.sha256:
        yield (
            f"{folder / MANIFEST} states the SHA-256 {info.sha256[:12]}, that of the images is "
            f"{found[:12]}; prepare the dataset again"
        )


def _problems(look: Callable[[], object]) -> Iterator[str]:
    try:
        look()
    except DatasetError as error:
        yield str(error)


def _shard(
    path: Path, shard: Shard, info: DatasetInfo, decode: bool, stopped: threading.Event
) -> _Found:
    found: dict[int, str] = {}
    verified = partial(verify_shards, path.parent, [shard], 1, "imagenet", whole=True)
    problems = list(_problems(verified))
    if problems:
        detail = _first_damage(path)
        return _Found({}, [], problems[0] + (f" ({detail})" if detail else ""))
    images: list[Digested] = []
    wrong: list[str] = []
    for place, image in enumerate(_images(path, stopped)):
        problem = _image(image, info, found, decode)
        if problem is not None or isinstance(image, str):
            wrong.append(problem or str(image))
            continue
        stored = shard.converted.get(place) or hashlib.sha256(image.encoded).hexdigest()
        images.append((image.name, image.label, stored))
    if wrong:
        return _Found({}, images, and_more(f"{path}: {wrong[0]}", wrong))
    if len(images) != shard.samples and not stopped.is_set():
        return _Found({}, images, f"{path} has {len(images)} images, not {shard.samples}")
    return _Found(found, images, None)


def _images(path: Path, stopped: threading.Event) -> Iterator[LabelledImage | str]:
    """Yield the images of a shard, and at last what is wrong with its records, if anything is."""
    try:
        with path.open("rb") as file:
            for content in tfrecord.contents(file.fileno()):
                if stopped.is_set():
                    return
                yield unpack(content)
    except ValueError as error:
        yield str(error)
    except OSError as error:
        yield f"it cannot be read: {reason_of(error)}"


def _image(
    image: LabelledImage | str, info: DatasetInfo, found: dict[int, str], decode: bool
) -> str | None:
    """Return what is wrong with an image, if anything is, and note its class."""
    if isinstance(image, str):
        return image
    if not 0 <= image.label < (info.classes or 0):
        return f"{image.name} has the label {image.label}, of {info.classes} classes"
    wnid = image.name.partition("/")[0]
    if found.setdefault(image.label, wnid) != wnid:
        return f"{image.name} has the label {image.label}, which is that of {found[image.label]}"
    if decode:
        try:
            again, _ = encode(image.encoded, info.stored)
        except ValueError as error:
            return f"{image.name} does not decode: {error}"
        if again != image.encoded:
            return f"{image.name} is not stored as {info.stored}"
    return None


def _contradiction(path: Path, known: dict[int, str], found: dict[int, str]) -> str | None:
    """Return where a shard's labels are not those of the others, or not in the classes' order."""
    together = {**found, **known}
    for label, wnid in found.items():
        if known.get(label, wnid) != wnid:
            return f"{path}: the label {label} is {wnid} here, and {known[label]} in other shards"
    in_order = [together[label] for label in sorted(together)]
    odd = _out_of_order(in_order)
    return f"{path}: its labels do not follow the sorted classes: {odd}" if odd else None


def _out_of_order(wnids: Sequence[str]) -> str | None:
    pairs = zip(wnids, wnids[1:], strict=False)
    return next((f"{later} before {first}" for later, first in pairs if later >= first), None)


def _first_damage(path: Path) -> str | None:
    """Return where a shard's records are damaged, if they are."""
    try:
        with path.open("rb") as file:
            for _ in tfrecord.scan(file.fileno()):
                pass
    except OSError:
        return None  # That it cannot be read was said.
    except ValueError as error:
        return str(error)
    return None
