"""JPEG files in folders: ``train/<wnid>/*.JPEG``, and ``val/`` with or without such folders.

This is the layout of torchvision's ``ImageNet`` and ``ImageFolder``, and of Kaggle's
``ILSVRC/Data/CLS-LOC/{train,val}``, which is accompanied by annotations and lists.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.imagenet.sources.base import (
    Image,
    ImageSource,
    and_more,
    entries,
)
from aiperf_hpc.replica.data.imagenet.sources.labels import (
    LABELS_FILE,
    LabelFile,
    labels_of,
    read_annotations,
    read_mapping,
    read_solution,
)
from aiperf_hpc.replica.data.progress import Meter, in_threads
from aiperf_hpc.replica.data.staging import Options

SUFFIXES = (".jpeg", ".jpg")
KAGGLE = "ILSVRC/Data/CLS-LOC"
"""Folder of Kaggle's images."""
_ANNOTATIONS = "ILSVRC/Annotations/CLS-LOC/val"
_SOLUTION = "LOC_val_solution.csv"
_MAPPING = "LOC_synset_mapping.txt"


def open_folders(
    train: Path,
    val: Path,
    label_files: Sequence[LabelFile],
    options: Options,
    layout: str = "train/ and val/ with a folder for each class",
) -> ImageSource:
    """List the images of two folders.

    Args:
        train: path of the training images, with a folder for each class.
        val: path of the validation images, with or without a folder for each class.
        label_files: possible label files of a ``val`` without class folders; the first existing
            one is read.
        options: number of folders listed concurrently, and progress display.
        layout: name of the layout.

    Raises:
        DatasetError: the folders do not have this layout.
    """
    wnids = class_folders(train)
    if len(wnids) < 2:
        raise DatasetError(
            f"{train} has {len(wnids)} class folders; expected train/<wnid>/*.JPEG for two classes "
            "at least"
        )
    label = {wnid: number for number, wnid in enumerate(wnids)}
    training = _class_images(train, wnids, label, options)
    found = class_folders(val)
    if found:
        unknown = sorted(set(found) - set(wnids))
        if unknown:
            raise DatasetError(f"{val / unknown[0]} is a class that {train.name}/ does not have")
        held_out = _class_images(val, found, label, options)
    else:
        held_out = sorted(_flat_images(val, label_files, label, options.cores))
        layout = layout.replace("val/ with a folder for each class", "val/ without class folders")
    source = ImageSource(
        layout=layout,
        wnids=wnids,
        training=training,
        validation=held_out,
        folders=(train, val),
    )
    source.check(train, val)
    return source


def open_kaggle(root: Path, options: Options) -> ImageSource:
    """List the images below the folder that contains ``ILSVRC/``.

    Validation labels are read from LOC_val_solution.csv, or from the annotations if there is no
    such file. The classes must match LOC_synset_mapping.txt if it exists.

    Raises:
        DatasetError: the folder does not have this layout.
    """
    train, val = root / KAGGLE / "train", root / KAGGLE / "val"
    mapping = root / _MAPPING
    if mapping.exists():
        _check_classes(class_folders(train), train, mapping)
    label_files = [
        LabelFile(root / _SOLUTION, read_solution),
        LabelFile(root / _ANNOTATIONS, read_annotations),
    ]
    return open_folders(train, val, label_files, options, "Kaggle's CLS-LOC")


def _check_classes(found: list[str], train: Path, mapping: Path) -> None:
    named = read_mapping(mapping)
    absent, unknown = sorted(set(named) - set(found)), sorted(set(found) - set(named))
    if unknown:
        what = f"{train / unknown[0]} is a class that {mapping} does not name"
        raise DatasetError(and_more(what, unknown))
    if absent:
        what = f"{train} lacks the class {absent[0]}, which {mapping} names"
        raise DatasetError(and_more(what, absent))


def class_folders(folder: Path) -> list[str]:
    """Return the names of the class folders. Raises DatasetError if there are also loose images."""
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
    folder: Path, found: Sequence[str], label: dict[str, int], options: Options
) -> list[Image]:
    """List class folders concurrently to hide the file server's latency for each image."""
    meter = Meter(options.progress, f"listing {folder.name}/", len(found), "classes")

    def images(wnid: str, _: object) -> list[Image]:
        return [_image(file, wnid, label[wnid]) for file in _image_files(folder / wnid)]

    return sorted(
        image for some in in_threads(images, found, options.cores, meter) for image in some
    )


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
        size = modified = 0  # Reading the file raises the error.
    return Image(label, f"{wnid}/{file.name}", file.path, -1, size, modified)
