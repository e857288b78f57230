"""JPEG files in folders: ``train/<wnid>/*.JPEG``, and ``val/`` with or without such folders.

So torchvision's ``ImageNet`` and ``ImageFolder`` want them, and so they lie in what Kaggle gives.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.imagenet.sources.base import (
    Image,
    Listing,
    ReadImage,
    and_more,
    check,
    entries,
)
from aiperf_hpc.replica.data.imagenet.sources.labels import LABELS_FILE, LabelFile, labels_of
from aiperf_hpc.replica.data.jobs import in_threads
from aiperf_hpc.replica.data.progress import Meter, Show

SUFFIXES = (".jpeg", ".jpg")


@dataclass(frozen=True, slots=True)
class FolderSource:
    """A source whose images are files."""

    listing: Listing
    unpacked_size: int = 0
    archives: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def opened(self, unpacked: Path, threads: int, progress: Show) -> Iterator[ReadImage]:
        """Return what reads the images."""
        del unpacked, threads, progress  # Files can be read in any order as they are.
        yield lambda image: Path(image.path).read_bytes()


def open_folders(
    train: Path,
    val: Path,
    label_files: Sequence[LabelFile],
    threads: int,
    progress: Show,
    layout: str = "train/ and val/ with a folder for each class",
) -> FolderSource:
    """List the images of two folders.

    Args:
        train: has a folder for each class.
        val: has a folder for each class too, or images alone.
        label_files: where the labels of these may be; the first that is there is read.
        threads: how many list folders at once.
        progress: is told how far that is.
        layout: what it is called.

    Raises:
        DatasetError: something is not as it should be.
    """
    wnids = class_folders(train)
    if len(wnids) < 2:
        raise DatasetError(
            f"{train} has {len(wnids)} class folders; expected train/<wnid>/*.JPEG for two classes "
            "at least"
        )
    label = {wnid: number for number, wnid in enumerate(wnids)}
    training = _class_images(train, wnids, label, threads, progress)
    found = class_folders(val)
    if found:
        unknown = sorted(set(found) - set(wnids))
        if unknown:
            raise DatasetError(f"{val / unknown[0]} is a class that {train.name}/ does not have")
        held_out = _class_images(val, found, label, threads, progress)
    else:
        held_out = sorted(_flat_images(val, label_files, label, threads))
        layout = layout.replace("val/ with a folder for each class", "val/ without class folders")
    listing = Listing(layout, wnids, training, held_out, (train, val))
    check(listing, {"train": str(train), "val": str(val)})
    return FolderSource(listing)


def class_folders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder. Raises DatasetError where images lie beside."""
    found = entries(folder)
    classes = [entry.name for entry in found if entry.is_dir()]
    loose = [entry.name for entry in found if entry.name.lower().endswith(SUFFIXES)]
    if classes and loose:
        what = f"{folder} has class folders and images beside them, like {loose[0]}"
        raise DatasetError(f"{and_more(what, loose)}: expected one or the other")
    return classes


def _image_files(folder: Path) -> list[os.DirEntry[str]]:
    files = [entry for entry in entries(folder) if entry.name != LABELS_FILE]
    others = [file.name for file in files if not file.name.lower().endswith(SUFFIXES)]
    if others:
        what = and_more(f"{folder / others[0]} is not a JPEG file by its name", others)
        raise DatasetError(f"{what}; take it away")
    if not files:
        raise DatasetError(f"{folder} has no JPEG files")
    return files


def _class_images(
    folder: Path, found: Sequence[str], label: dict[str, int], threads: int, progress: Show
) -> list[Image]:
    """List the folders of the classes at once: a file server takes its time for each image."""
    meter = Meter(progress, f"listing {folder.name}/", len(found), "classes")

    def images(wnid: str, _: object) -> list[Image]:
        listed = [_image(file, wnid, label[wnid]) for file in _image_files(folder / wnid)]
        meter.add()
        return listed

    return sorted(image for some in in_threads(images, found, threads) for image in some)


def _flat_images(
    folder: Path, label_files: Sequence[LabelFile], label: dict[str, int], threads: int
) -> Iterator[Image]:
    files = {file.name: file for file in _image_files(folder)}
    for file, wnid in labels_of(folder, list(files), label_files, label, threads).items():
        yield _image(files[file], wnid, label[wnid])


def _image(file: os.DirEntry[str], wnid: str, label: int) -> Image:
    try:
        status = file.stat()
        size, modified = status.st_size, status.st_mtime_ns
    except OSError:
        size = modified = 0  # It is named when it is read.
    return Image(label, f"{wnid}/{file.name}", file.path, None, size, modified)
