"""JPEG files in folders: ``train/<wnid>/*.JPEG``, and ``val/`` with or without such folders.

This is the layout of torchvision's ``ImageNet`` and ``ImageFolder``, and of Kaggle's
``ILSVRC/Data/CLS-LOC/{train,val}``, which is accompanied by annotations and lists. The labels of
validation images in one flat folder are read from any of the published label files:

| file | content |
|---|---|
| ``val_labels.txt`` | "<file> <wnid>", one line per image |
| ``LOC_val_solution.csv`` | Kaggle: image name without extension, and its boxes: wnid, corners |
| ``Annotations/CLS-LOC/val/*.xml`` | Kaggle: one file per image, with the wnid of each object |
| ``ILSVRC2012_devkit_t12`` | official kit: the class number of each image, and the classes' wnids |
| ``meta.bin`` | torchvision: the wnid of each image |
"""

from __future__ import annotations

import csv
import io
import os
import pickle
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from aiperf_hpc.datasets import read_errors
from aiperf_hpc.errors import DatasetError, raising, reason_of, restated
from aiperf_hpc.replica.data.imagenet.sources.base import Image, ImageSource, and_more, entries
from aiperf_hpc.replica.data.progress import Meter, in_threads
from aiperf_hpc.replica.data.staging import Options

LABELS_FILE = "val_labels.txt"
DEVKIT = "ILSVRC2012_devkit_t12"
_GROUND_TRUTH = f"{DEVKIT}/data/ILSVRC2012_validation_ground_truth.txt"
_META = f"{DEVKIT}/data/meta.mat"
_OFFICIAL_NAME = "ILSVRC2012_val_%08d"


class Labelled(NamedTuple):
    """An image's entry in a label file."""

    where: str
    """Path of the label file and position in it, for messages."""
    image: str
    """File name of the image, with or without extension."""
    wnid: str


Files = Sequence[str]
Read = Callable[[Path, Files, int], Iterable[Labelled]]
"""Reads a label file. Arguments: path, file names of the images, number of threads.
Raises DatasetError."""


class LabelFile(NamedTuple):
    """Possible path of a label file, and its reader."""

    path: Path
    read: Read


def label_files_of(source: Path, val: Path) -> list[LabelFile]:
    """Return the possible label files of a flat folder ``val`` in order of preference."""
    return [
        LabelFile(source / LABELS_FILE, read_lines),
        LabelFile(val / LABELS_FILE, read_lines),
        LabelFile(source / "LOC_val_solution.csv", read_solution),
        LabelFile(source / DEVKIT, read_devkit),
        LabelFile(source / f"{DEVKIT}.tar.gz", read_devkit),
        LabelFile(source / "meta.bin", read_meta_bin),
    ]


def labels_of(
    folder: Path,
    files: Files,
    label_files: Sequence[LabelFile],
    known: Mapping[str, int],
    threads: int,
) -> dict[str, str]:
    """Return the wnid of each image of a folder.

    Raises:
        DatasetError: an image has no label or two labels, a label has no image, or a label is
            unknown.
    """
    chosen = next((each for each in label_files if each.path.exists()), None)
    if chosen is None:
        names = ", ".join(dict.fromkeys(each.path.name for each in label_files))
        raise DatasetError(
            f"{folder} has no class folders, and there are no labels of its images: expected "
            f"{folder.name}/<wnid>/*.JPEG or one of {names}"
        )
    labels = _by_image(chosen.read(chosen.path, files, threads), known)
    return _of_files(folder, files, labels, chosen.path)


def _by_image(labelled: Iterable[Labelled], known: Mapping[str, int]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for where, image, wnid in labelled:
        if wnid not in known:
            raise DatasetError(f"{where}: {wnid} is a class that the training images lack")
        if image in labels:
            raise DatasetError(f"{where}: {image} already has a label")
        labels[image] = wnid
    return labels


def _of_files(folder: Path, files: Files, labels: Mapping[str, str], path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    names: dict[str, str] = {}
    unlabelled = []
    for file in files:
        name = file if file in labels else Path(file).stem
        if name not in labels:
            unlabelled.append(file)
        elif name in names:
            raise DatasetError(f"{folder / names[name]} and {file} have one label in {path}")
        else:
            names[name], found[file] = file, labels[name]
    if unlabelled:
        raise DatasetError(and_more(f"{path} has no label for {unlabelled[0]}", unlabelled))
    absent = sorted(set(labels) - set(names))
    if absent:
        raise DatasetError(and_more(f"{path} names {absent[0]}, which is not in {folder}", absent))
    return found


def read_lines(path: Path, *_: object) -> Iterator[Labelled]:
    """Read ``val_labels.txt``."""
    for number, line in enumerate(_text(path).splitlines(), 1):
        words = line.split()
        if words and len(words) != 2:
            raise DatasetError(f"{path}, line {number}: expected '<file> <wnid>'")
        if words:
            yield Labelled(f"{path}, line {number}", *words)


def read_solution(path: Path, *_: object) -> Iterator[Labelled]:
    """Read Kaggle's ``LOC_val_solution.csv``."""
    lines = csv.reader(io.StringIO(_text(path)))
    if next(lines, None) != ["ImageId", "PredictionString"]:
        raise DatasetError(f"{path}, line 1: expected 'ImageId,PredictionString'")
    for row in lines:
        where = f"{path}, line {lines.line_num}"
        boxes = row[1].split() if len(row) == 2 else []
        if not boxes or len(boxes) % 5 or len(set(boxes[::5])) != 1:
            raise DatasetError(
                f"{where}: expected an image and boxes of one class, each a wnid and four numbers"
            )
        yield Labelled(where, row[0], boxes[0])


def read_annotations(path: Path, files: Files, threads: int) -> Iterator[Labelled]:
    """Read the files in Kaggle's ``Annotations/CLS-LOC/val``, one per image."""
    names = [Path(file).stem for file in files if (path / f"{Path(file).stem}.xml").exists()]

    def labelled(name: str, _: object) -> Labelled:
        file = path / f"{name}.xml"
        no_xml = restated(f"{file} is not XML", DatasetError, caught=ElementTree.ParseError)
        with no_xml, read_errors(file):
            content = ElementTree.fromstring(file.read_bytes())  # noqa: S314 -- expat has limits
        wnids = {found.text or "" for found in content.iterfind("object/name")}
        if len(wnids) != 1:
            raise DatasetError(f"{file}: expected objects of one class, it has {len(wnids)}")
        return Labelled(str(file), name, wnids.pop())

    return in_threads(labelled, names, threads)


def read_devkit(path: Path, *_: object) -> Iterator[Labelled]:
    """Read the official development kit, a folder or an archive."""
    truth, meta = _devkit_files(path)
    wnids = _devkit_wnids(path, meta)
    for number, line in enumerate(truth.decode("ascii", "replace").split(), 1):
        where = f"{path}, {_GROUND_TRUTH.rpartition('/')[2]}, line {number}"
        if line not in wnids:
            raise DatasetError(f"{where}: {line} is not a class in meta.mat")
        yield Labelled(where, _OFFICIAL_NAME % number, wnids[line])


def _devkit_files(path: Path) -> tuple[bytes, bytes]:
    names = (_GROUND_TRUTH, _META)
    try:
        if path.is_dir():
            truth, meta = ((path.parent / name).read_bytes() for name in names)
        else:
            with tarfile.open(path) as archive:
                truth, meta = (_member(archive, name) for name in names)
    except (OSError, tarfile.TarError, EOFError, KeyError, zlib.error) as error:
        where = getattr(error, "filename", None) or path
        raise DatasetError(f"cannot read {where}: {reason_of(error)}") from None
    return truth, meta


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    content = archive.extractfile(name)
    if content is None:
        raise KeyError(f"{name} is no file")
    return content.read()


def _devkit_wnids(path: Path, meta: bytes) -> dict[str, str]:
    """Return the wnids by the kit's class numbers, which differ from the labels."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    damage = (MatReadError, OSError, ValueError, TypeError, KeyError, IndexError, zlib.error)
    with raising(DatasetError(f"cannot read {path}: its meta.mat is damaged"), *damage):
        synsets = loadmat(io.BytesIO(meta), squeeze_me=True)["synsets"]
        return {
            str(number): str(wnid)
            for number, wnid in zip(synsets["ILSVRC2012_ID"], synsets["WNID"], strict=True)
        }


def read_meta_bin(path: Path, *_: object) -> Iterator[Labelled]:
    """Read torchvision's ``meta.bin``: a pair pickled by torch, whose second item has the wnids."""
    problem = DatasetError(f"cannot read {path}: it is not a file written by torchvision")
    damage = (zipfile.BadZipFile, pickle.UnpicklingError, EOFError, ValueError, TypeError)
    with raising(problem, *damage), read_errors(path), zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        _, wnids = _Plain(io.BytesIO(archive.read(name))).load()
    if not isinstance(wnids, list) or not all(isinstance(wnid, str) for wnid in wnids):
        raise problem
    for number, wnid in enumerate(wnids, 1):
        yield Labelled(f"{path}, label {number}", _OFFICIAL_NAME % number, wnid)


class _Plain(pickle.Unpickler):
    """Reads a pickle of plain values without importing or calling any global."""

    def find_class(self, module: str, name: str) -> object:
        raise pickle.UnpicklingError(f"{module}.{name} is not a plain value")


def _text(path: Path) -> str:
    no_text = DatasetError(f"cannot read {path}: it is not text")
    with raising(no_text, UnicodeDecodeError), read_errors(path):
        return path.read_text("utf-8")


def read_mapping(path: Path) -> list[str]:
    """Read the wnids of Kaggle's ``LOC_synset_mapping.txt``, with lines "<wnid> <words>"."""
    wnids = [line.split()[0] for line in _text(path).splitlines() if line.strip()]
    odd = [wnid for wnid in wnids if not re.fullmatch(r"n\d{8}", wnid)]
    if odd or len(set(wnids)) != len(wnids):
        raise DatasetError(f"{path}: expected a wnid and its words in each line, each wnid once")
    return wnids


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
            f"{train} has {len(wnids)} class folders; expected train/<wnid>/*.JPEG for at least "
            "two classes"
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
        what = f"{folder} has class folders and images next to them, like {loose[0]}"
        raise DatasetError(f"{and_more(what, loose)}: expected one or the other")
    return classes


def _image_files(folder: Path) -> list[os.DirEntry[str]]:
    files = [entry for entry in entries(folder) if entry.name != LABELS_FILE]
    others = [file.name for file in files if not file.name.lower().endswith(SUFFIXES)]
    if others:
        what = and_more(f"{folder / others[0]} does not have a JPEG file name", others)
        raise DatasetError(f"{what}; remove it")
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
