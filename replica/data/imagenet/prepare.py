"""From ImageNet's folders of JPEG files to TFRecord shards.

The source is the official layout, ``train/<wnid>/*.JPEG`` and ``val/<wnid>/*.JPEG``; or ``val/``
without folders, and beside it or in it ``val_labels.txt`` with a line "<file> <wnid>" for each
image. Labels number the sorted names of the training folders from 0.

The dataset's SHA-256 says which images it is made of, whatever the number of shards. It is taken
over one line an image, the training images first, each part sorted by name:
``<part> <wnid>/<file> <label> <SHA-256 of the source file>`` with tabs between and a newline at
the end; part is train or validation.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from aiperf_hpc.dataset_manifest import save_dataset_manifest
from aiperf_hpc.errors import DatasetError, reason_of
from aiperf_hpc.replica.data import rng
from aiperf_hpc.replica.data.imagenet import tfrecord
from aiperf_hpc.replica.data.imagenet.shards import (
    Shard,
    ShardIndex,
    describe_shard,
    save_index,
    save_sizes,
)
from aiperf_hpc.replica.data.rng import Purpose
from aiperf_hpc.replica.data.staging import Options, check_space, staged
from aiperf_hpc.trial import DatasetInfo

SHARD_SAMPLES = 1252
"""Images in a shard when the number of shards is not given: 1,024 shards for ILSVRC 2012."""

SAMPLE_SHAPE = (224, 224, 3)
"""The shape that dataset.json records; a run's own image size replaces it."""

LABELS_FILE = "val_labels.txt"

_SUFFIXES = (".jpeg", ".jpg")
_KEPT_FORMATS = ("JPEG", "MPO")
_KEPT_MODES = ("RGB", "L")
_READABLE_FORMATS = ("JPEG", "PNG", "GIF", "BMP")
_QUALITY = 95
_SCAN, _END = b"\xff\xda", b"\xff\xd9"
"""Markers in a JPEG file: before the pixels, and behind them."""


class Source(NamedTuple):
    """An image to be stored. A tuple of plain values, since there are 1.3 million of them."""

    path: str
    name: str
    """``<wnid>/<file>``, in either layout of the validation images."""
    label: int


class Stored(NamedTuple):
    """What became of an image."""

    name: str
    label: int
    sha256: str
    converted: str | None
    """What the image was, where it was no grey or RGB JPEG file."""


@dataclass(slots=True)
class _Tally:
    """What all shards together say about the dataset."""

    stored: dict[str, list[Stored]] = field(default_factory=dict)
    converted: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)
    """What is wrong with images, a line each."""

    def add(self, part: str, images: list[Stored]) -> None:
        self.stored.setdefault(part, []).extend(images)
        self.converted.update(image.converted for image in images if image.converted)

    def refuse(self, what: str, complain: Callable[[str], None]) -> None:
        self.refused.append(what)
        # A single one is said at the end: it is the error itself.
        if len(self.refused) == 2:
            complain(self.refused[0])
        if len(self.refused) >= 2:
            complain(what)

    def check(self, images: int) -> None:
        """Require that none was refused. Raises DatasetError."""
        if len(self.refused) == 1:
            raise DatasetError(self.refused[0])
        if self.refused:
            raise DatasetError(
                f"{len(self.refused)} of {images} images are corrupt or cannot be read: those "
                "above; replace them or take them away"
            )

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for part in ("train", "validation"):
            for image in sorted(self.stored[part]):
                line = f"{part}\t{image.name}\t{image.label}\t{image.sha256}\n"
                digest.update(line.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()


def prepare(source: Path, target: Path, options: Options | None = None) -> DatasetInfo:
    """Make the folder ``target`` of TFRecord shards out of ImageNet's folders of JPEG files.

    Every image is decoded once, by a decoder that takes and refuses what those of a run do. Grey
    and RGB JPEG files are stored as they are; others (CMYK, PNG under a JPEG name) are converted
    to RGB JPEG.

    Args:
        options: ``shards`` is the number of training shards; the validation images get as many
            as makes their shards as large.

    Raises:
        DatasetError: ``source`` is not in the layout, images are corrupt or cannot be read (each
            is named, through ``complain`` if there are several), ``target`` is not empty or
            cannot be written, or there is not enough space.
    """
    options = options or Options()
    wnids, training = list_training(source)
    held_out = list_validation(source, wnids)
    shards = _shard_counts(len(training), len(held_out), options.shards)
    tally = _Tally()
    with staged(target, options.report) as folder:
        check_space(folder, sum(_size(image) for image in (*training, *held_out)))
        # Files are listed class by class; unmixed, 16 open shards would hold some 16 classes.
        order = rng.permutation(len(training), Purpose.SPLIT).tolist()
        mixed = [training[place] for place in order]
        jobs = [*_jobs("train", mixed, shards[0]), *_jobs("validation", held_out, shards[1])]
        written = _Preparation(folder, options).write(jobs, tally)
        info = DatasetInfo.of_labelled_images(
            name="imagenet",
            sha256=tally.sha256(),
            classes=len(wnids),
            shape=SAMPLE_SHAPE,
            train_samples=len(training),
            validation_samples=len(held_out),
        )
        index = ShardIndex(
            dataset_sha256=info.sha256,
            train=tuple(written[: shards[0]]),
            validation=tuple(written[shards[0] :]),
        )
        save_index(folder, index)
        save_dataset_manifest(folder, info)
    options.report(_conversions(tally.converted))
    return info


def list_training(source: Path) -> tuple[list[str], list[Source]]:
    """Return the sorted class names and the images of ``train/``, sorted by name."""
    wnids = _class_folders(source / "train")
    if len(wnids) < 2:
        raise DatasetError(
            f"{source / 'train'} has {len(wnids)} class folders; expected the official layout, "
            "train/<wnid>/*.JPEG"
        )
    return wnids, list(_class_images(source / "train", wnids, wnids))


def list_validation(source: Path, wnids: list[str]) -> list[Source]:
    """Return the images of ``val/``, sorted by name, from either of its layouts."""
    folder = source / "val"
    found = _class_folders(folder)
    if found:
        unknown = sorted(set(found) - set(wnids))
        if unknown:
            raise DatasetError(f"{folder / unknown[0]} is a class that train/ does not have")
        return list(_class_images(folder, found, wnids))
    for labels in (source / LABELS_FILE, folder / LABELS_FILE):
        if labels.exists():
            return sorted(_flat_images(folder, labels, wnids), key=lambda image: image.name)
    raise DatasetError(
        f"{folder} has no class folders and there is no {LABELS_FILE}; expected val/<wnid>/*.JPEG, "
        f"or a flat val/ and {LABELS_FILE} with lines '<file> <wnid>'"
    )


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """List a folder by name, hidden files left out. Raises DatasetError."""
    try:
        with os.scandir(folder) as entries:
            shown = [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DatasetError(f"cannot read {folder}: {reason_of(error)}") from None
    return sorted(shown, key=lambda entry: entry.name)


def _class_folders(folder: Path) -> list[str]:
    return [entry.name for entry in _entries(folder) if entry.is_dir()]


def _image_files(folder: Path) -> list[str]:
    names = [entry.name for entry in _entries(folder) if entry.name != LABELS_FILE]
    others = [name for name in names if not name.lower().endswith(_SUFFIXES)]
    if others:
        what = _and_more(f"{folder / others[0]} is not a JPEG file by its name", others)
        raise DatasetError(f"{what}; take it away")
    if not names:
        raise DatasetError(f"{folder} has no JPEG files")
    return names


def _class_images(folder: Path, found: list[str], wnids: list[str]) -> Iterator[Source]:
    label = {wnid: number for number, wnid in enumerate(wnids)}
    for wnid in found:
        for file in _image_files(folder / wnid):
            yield Source(str(folder / wnid / file), f"{wnid}/{file}", label[wnid])


def _flat_images(folder: Path, labels: Path, wnids: list[str]) -> Iterator[Source]:
    label = {wnid: number for number, wnid in enumerate(wnids)}
    classes = _read_labels(labels, label)
    files = _image_files(folder)
    unlabelled = [file for file in files if file not in classes]
    if unlabelled:
        raise DatasetError(_and_more(f"{labels} has no line for {unlabelled[0]}", unlabelled))
    for file in files:
        yield Source(str(folder / file), f"{classes[file]}/{file}", label[classes[file]])
    absent = sorted(set(classes) - set(files))
    if absent:
        what = f"{labels} names {absent[0]}, which is not in {folder}"
        raise DatasetError(_and_more(what, absent))


def _and_more(what: str, all_of: Sequence[str]) -> str:
    return what if len(all_of) == 1 else f"{what} (and {len(all_of) - 1} more)"


def _read_labels(path: Path, known: dict[str, int]) -> dict[str, str]:
    """Return the class of each file that ``val_labels.txt`` names."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        detail = reason_of(error) if isinstance(error, OSError) else "it is not text"
        raise DatasetError(f"cannot read {path}: {detail}") from None
    classes: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        words = line.split()
        if len(words) != 2:
            raise DatasetError(f"{path}, line {number}: expected '<file> <wnid>'")
        file, wnid = words
        if wnid not in known:
            raise DatasetError(f"{path}, line {number}: {wnid} is a class that train/ lacks")
        if file in classes:
            raise DatasetError(f"{path}, line {number}: {file} has a line already")
        classes[file] = wnid
    return classes


def _shard_counts(training: int, held_out: int, wanted: int | None) -> tuple[int, int]:
    shards = wanted if wanted is not None else -(-training // SHARD_SAMPLES)
    if not 1 <= shards <= training:
        raise DatasetError(f"--shards {shards}: for {training} training images, 1 to {training}")
    return shards, min(held_out, max(1, round(held_out * shards / training)))


def _size(image: Source) -> int:
    try:
        return Path(image.path).stat().st_size
    except OSError:
        return 0  # It is named when it is read.


class _Job(NamedTuple):
    part: str
    file: str
    images: Sequence[Source]


def _jobs(part: str, images: list[Source], shards: int) -> Iterator[_Job]:
    """Cut the images into shards whose sizes differ by one at most."""
    for shard in range(shards):
        start, end = (len(images) * edge // shards for edge in (shard, shard + 1))
        yield _Job(part, f"{part}-{shard:05d}-of-{shards:05d}", images[start:end])


class _Written(NamedTuple):
    """A finished shard: its entry in the index, the bytes of its records, what they were."""

    shard: Shard
    sizes: list[int]
    images: list[Stored]


class _Preparation:
    """Shards that are written at once, by threads, and what keeps them from being finished."""

    def __init__(self, folder: Path, options: Options) -> None:
        self._folder = folder
        self._options = options
        self._stopped = threading.Event()
        """Set when the threads are to end."""
        self._failed = threading.Event()
        """Set once an image was refused: the others are looked at, but no longer stored."""

    def write(self, jobs: list[_Job], tally: _Tally) -> list[Shard]:
        """Write the shards and return them in order.

        Raises:
            DatasetError: images are corrupt or cannot be read; all were looked at.
        """
        shards, sizes = [], []
        with ThreadPoolExecutor(max(1, self._options.cores)) as pool:
            results = [pool.submit(self._shard, job) for job in jobs]
            try:
                for job, result in zip(jobs, results, strict=True):
                    written, refused = result.result()
                    for what in refused:
                        tally.refuse(what, self._options.complain)
                    if written is not None:
                        tally.add(job.part, written.images)
                        sizes += written.sizes
                        shards.append(shard := written.shard)
                        self._options.report(
                            f"{shard.file}: {shard.samples} images, {shard.bytes} bytes"
                        )
            finally:
                self._stopped.set()
                pool.shutdown(cancel_futures=True)
        tally.check(sum(len(job.images) for job in jobs))
        save_sizes(self._folder, sizes)
        return shards

    def _shard(self, job: _Job) -> tuple[_Written | None, list[str]]:
        """Write one shard; return it, or what is wrong with its images."""
        sizes: list[int] = []
        stored: list[Stored] = []
        refused: list[str] = []
        path = self._folder / job.file
        with path.open("wb") as file:
            for image in job.images:
                if self._stopped.is_set():
                    return None, refused  # Nobody asks for it any more.
                try:
                    encoded, what = _read_image(image)
                except DatasetError as error:
                    refused.append(str(error))
                    self._failed.set()
                if self._failed.is_set():
                    continue
                content = tfrecord.pack(tfrecord.LabelledImage(encoded, image.label, image.name))
                tfrecord.write_record(file, content)
                sizes.append(len(content) + tfrecord.OVERHEAD)
                stored.append(what)
        if self._failed.is_set():
            path.unlink()
            return None, refused
        return _Written(describe_shard(path, len(stored)), sizes, stored), refused


def _read_image(image: Source) -> tuple[bytes, Stored]:
    """Return an image's JPEG bytes, and what it was. Raises DatasetError."""
    try:
        source = Path(image.path).read_bytes()
    except OSError as error:
        raise DatasetError(f"cannot read {image.path}: {reason_of(error)}") from None
    try:
        encoded, converted = as_jpeg(source)
    except ValueError as error:
        raise DatasetError(f"{image.path} is corrupt: {error}") from None
    digest = hashlib.sha256(source).hexdigest()
    return encoded, Stored(image.name, image.label, digest, converted)


def as_jpeg(encoded: bytes) -> tuple[bytes, str | None]:
    """Return an image as a grey or RGB JPEG file, and what it was if it was something else.

    It is decoded to its last line. How a file says that it is to be turned (Exif) is not looked
    at, here or when it is read.

    Raises:
        ValueError: it is no image, or a corrupt one.
    """
    from PIL import Image, UnidentifiedImageError  # needed in preparation only

    try:
        with Image.open(io.BytesIO(encoded), formats=_READABLE_FORMATS) as image:
            image.load()
            if image.format in _KEPT_FORMATS and image.mode in _KEPT_MODES:
                if encoded.rfind(_END) < encoded.rfind(_SCAN):
                    raise ValueError("it has no end; TensorFlow would refuse it")
                return encoded, None
            kind = f"{image.mode} JPEG" if image.format in _KEPT_FORMATS else str(image.format)
            converted = io.BytesIO()
            image.convert("RGB").save(converted, "JPEG", quality=_QUALITY, subsampling=0)
            return converted.getvalue(), kind
    except UnidentifiedImageError:
        raise ValueError("it is no image") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(" ".join(str(error).split())) from None


def _conversions(converted: Counter[str]) -> str:
    if not converted:
        return "all images are stored as they are"
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(converted.items()))
    return f"converted to RGB JPEG: {kinds}"
