"""What Kaggle gives: ``ILSVRC/Data/CLS-LOC/{train,val}``, with annotations and lists beside it."""

from __future__ import annotations

from pathlib import Path

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.imagenet.sources.base import and_more
from aiperf_hpc.replica.data.imagenet.sources.folders import (
    FolderSource,
    class_folders,
    open_folders,
)
from aiperf_hpc.replica.data.imagenet.sources.labels import (
    LabelFile,
    read_annotations,
    read_mapping,
    read_solution,
)
from aiperf_hpc.replica.data.progress import Show

IMAGES = "ILSVRC/Data/CLS-LOC"
_ANNOTATIONS = "ILSVRC/Annotations/CLS-LOC/val"
_SOLUTION = "LOC_val_solution.csv"
_MAPPING = "LOC_synset_mapping.txt"


def open_kaggle(root: Path, threads: int, progress: Show) -> FolderSource:
    """List the images below the folder that has ``ILSVRC/``.

    The labels of validation are read from LOC_val_solution.csv, or from the annotations where it
    is not there. The classes must be those of LOC_synset_mapping.txt, where that is there.

    Raises:
        DatasetError: something is not as it should be.
    """
    train, val = root / IMAGES / "train", root / IMAGES / "val"
    mapping = root / _MAPPING
    if mapping.exists():
        _check_classes(class_folders(train), train, mapping)
    label_files = [
        LabelFile(root / _SOLUTION, read_solution),
        LabelFile(root / _ANNOTATIONS, read_annotations),
    ]
    return open_folders(train, val, label_files, threads, progress, "Kaggle's CLS-LOC")


def _check_classes(found: list[str], train: Path, mapping: Path) -> None:
    named = read_mapping(mapping)
    absent, unknown = sorted(set(named) - set(found)), sorted(set(found) - set(named))
    if unknown:
        what = f"{train / unknown[0]} is a class that {mapping} does not name"
        raise DatasetError(and_more(what, unknown))
    if absent:
        what = f"{train} lacks the class {absent[0]}, which {mapping} names"
        raise DatasetError(and_more(what, absent))
