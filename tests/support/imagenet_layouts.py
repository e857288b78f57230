"""A little ImageNet in every layout that it comes in, made from its folders of classes."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np

from aiperf_hpc.datasets import DEVKIT, TRAINING, VALIDATION

WORDS = ("tench, Tinca tinca", "dog, domestic dog", "crane, machine")
"""Of the classes, as far as they have any."""


def images(source: Path, part: str) -> list[Path]:
    """Return the images of a part, by class and name."""
    return sorted((source / part).glob("*/*.JPEG"))


def wnids(source: Path) -> list[str]:
    return sorted(path.name for path in (source / "train").iterdir())


def words_of(classes: Collection[str]) -> list[str]:
    """Return what classes are called; those behind the first have made-up names."""
    return [*WORDS, *(f"thing {number}" for number in range(len(classes)))][: len(classes)]


def flatten(source: Path) -> list[tuple[str, str]]:
    """Take the class folders of val/ away; return each image's file and wnid."""
    listed = []
    for path in images(source, "val"):
        listed.append((path.name, path.parent.name))
        path.rename(source / "val" / path.name)
    for folder in [path for path in (source / "val").iterdir() if path.is_dir()]:
        folder.rmdir()
    return sorted(listed)


def val_labels(source: Path) -> None:
    lines = [f"{file} {wnid}\n" for file, wnid in reversed(flatten(source))]
    (source / "val_labels.txt").write_text("".join(lines))


def labels_inside(source: Path) -> None:
    val_labels(source)
    (source / "val_labels.txt").rename(source / "val" / "val_labels.txt")


def solution(source: Path) -> None:
    write_solution(source / "LOC_val_solution.csv", flatten(source))


def write_solution(path: Path, listed: list[tuple[str, str]]) -> None:
    boxes = [" ".join([f"{wnid} 1 2 30 40 "] * (1 + n % 2)) for n, (_, wnid) in enumerate(listed)]
    rows = [f"{Path(file).stem},{box}\n" for (file, _), box in zip(listed, boxes, strict=True)]
    path.write_text("ImageId,PredictionString\n" + "".join(reversed(rows)))


def devkit(source: Path) -> None:
    """The official kit, whose own numbers are not the labels."""
    from scipy.io import savemat

    listed, classes = flatten(source), wnids(source)
    numbers = {wnid: len(classes) - label for label, wnid in enumerate(classes)}
    kind = [(name, object) for name in ("ILSVRC2012_ID", "WNID", "words", "num_children")]
    synsets = np.zeros((len(classes) + 1, 1), kind)
    for place, wnid in enumerate(sorted(classes, key=numbers.__getitem__)):
        synsets[place, 0] = (numbers[wnid], wnid, "words", 0)
    synsets[-1, 0] = (len(classes) + 1, "n00001740", "entity", len(classes))
    (data := source / "ILSVRC2012_devkit_t12" / "data").mkdir(parents=True)
    savemat(data / "meta.mat", {"synsets": synsets})
    truth = "".join(f"{numbers[wnid]}\n" for _, wnid in listed)
    (data / "ILSVRC2012_validation_ground_truth.txt").write_text(truth)


def devkit_archive(source: Path) -> None:
    devkit(source)
    folder = source / "ILSVRC2012_devkit_t12"
    with tarfile.open(source / f"{folder.name}.tar.gz", "w:gz") as archive:
        archive.add(folder, folder.name)
    shutil.rmtree(folder)


def archives(source: Path) -> dict[str, str]:
    """The official archives, with a tar file for each class inside; return the MD5 of each."""
    devkit_archive(source)
    with tarfile.open(source / TRAINING, "w") as outer:
        for wnid in reversed(wnids(source)):
            with tarfile.open(source / f"{wnid}.tar", "w") as inner:
                for path in sorted((source / "train" / wnid).iterdir(), reverse=True):
                    inner.add(path, path.name)
            outer.add(source / f"{wnid}.tar", f"{wnid}.tar")
            (source / f"{wnid}.tar").unlink()
    with tarfile.open(source / VALIDATION, "w") as archive:
        for path in sorted((source / "val").iterdir()):
            archive.add(path, path.name)
    for part in ("train", "val"):
        shutil.rmtree(source / part)
    return {name: md5(source / name) for name in (TRAINING, VALIDATION, DEVKIT)}


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def meta_bin(source: Path) -> None:
    """As torchvision writes it."""
    import torch

    classes = {wnid: (words,) for wnid, words in zip(wnids(source), WORDS, strict=True)}
    torch.save((classes, [wnid for _, wnid in flatten(source)]), source / "meta.bin")


def kaggle(source: Path, *, annotated: bool = False) -> None:
    classes, listed = wnids(source), flatten(source)
    (folder := source / "ILSVRC" / "Data" / "CLS-LOC").mkdir(parents=True)
    for part in ("train", "val"):
        (source / part).rename(folder / part)
    (folder / "test").mkdir()
    (folder / "test" / "ILSVRC2012_test_00000001.JPEG").touch()
    mapping = [f"{wnid} {words}\n" for wnid, words in zip(classes, words_of(classes), strict=True)]
    (source / "LOC_synset_mapping.txt").write_text("".join(mapping))
    if not annotated:
        write_solution(source / "LOC_val_solution.csv", listed)
        return
    (annotations := source / "ILSVRC" / "Annotations" / "CLS-LOC" / "val").mkdir(parents=True)
    for number, (file, wnid) in enumerate(listed):
        objects = f"<object><name>{wnid}</name><bndbox/></object>" * (1 + number % 2)
        text = f"<annotation><filename>{Path(file).stem}</filename>{objects}</annotation>"
        (annotations / f"{Path(file).stem}.xml").write_text(text)


def kaggle_annotated(source: Path) -> None:
    kaggle(source, annotated=True)


def parquet(source: Path, *, files: int = 2) -> None:
    """As Hugging Face has imagenet-1k: mixed, with a test part and the names of the classes."""
    labels = {wnid: label for label, wnid in enumerate(wnids(source))}
    (data := source / "data").mkdir()
    for part, name in (("train", "train"), ("val", "validation")):
        found = images(source, part)
        order = np.random.default_rng(3).permutation(len(found)).tolist()
        rows = [row_of(found[place], labels) for place in order]
        for number in range(files):
            path = data / f"{name}-{number:05d}-of-{files:05d}.parquet"
            write_parquet(path, rows[number::files], words_of(labels))
    write_parquet(
        data / "test-00000-of-00001.parquet",
        [{"image": {"bytes": b"", "path": "ILSVRC2012_test_00000001.JPEG"}, "label": -1}],
    )
    for part in ("train", "val"):
        shutil.rmtree(source / part)


def row_of(path: Path, labels: dict[str, int]) -> dict[str, object]:
    wnid = path.parent.name
    image = {"bytes": path.read_bytes(), "path": f"{path.stem}_{wnid}{path.suffix}"}
    return {"image": image, "label": labels[wnid]}


def write_parquet(path: Path, rows: list[dict[str, object]], names: Sequence[str] = WORDS) -> None:
    import pyarrow as pa
    from pyarrow.parquet import write_table

    features = {
        "image": {"_type": "Image"},
        "label": {"names": list(names), "_type": "ClassLabel"},
    }
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = pa.schema([("image", image), ("label", pa.int64())], metadata)
    write_table(pa.Table.from_pylist(rows, schema), path, row_group_size=4)


LAYOUTS: dict[str, Callable[[Path], None]] = {
    "folders": lambda source: None,
    "val_labels": val_labels,
    "labels inside": labels_inside,
    "solution": solution,
    "devkit": devkit,
    "devkit_archive": devkit_archive,
    "meta_bin": meta_bin,
    "kaggle": kaggle,
    "kaggle_annotated": kaggle_annotated,
    "parquet": parquet,
}
"""What makes each layout out of ``train/<wnid>/`` and ``val/<wnid>/``, in the same folder."""
