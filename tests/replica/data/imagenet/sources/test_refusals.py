"""What is wrong with a source is said in one line, before anything is written."""

from __future__ import annotations

import gzip
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.parquet import read_table, write_table
from tests.support import imagenet_layouts as layouts
from tests.support.damage import Damage, removed, resized, written
from tests.support.refusals import refused

from aiperf_hpc import extras
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.imagenet.sources import ImageSource, open_source, parquet
from aiperf_hpc.replica.data.imagenet.sources import prepare as prepare_imagenet
from aiperf_hpc.replica.data.staging import Options

IMAGES = "ILSVRC/Data/CLS-LOC"
FIRST, SECOND, THIRD = "n01440764", "n02084071", "n03000134"


def _open(source: Path) -> ImageSource:
    return open_source(source, Options(cores=2))


def _refused(source: Path, message: str) -> None:
    with refused(message):
        _open(source)


# Folders


MIXED = "has class folders and images next to them, like loose.JPEG"


def _with_parquet(source: Path) -> None:
    (source / "data").mkdir()
    (source / "data" / "train-00000-of-00001.parquet").touch()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_with_parquet, r"is a mixture of layouts: it has train/ and train-\*.parquet"),
        (
            lambda source: (source / IMAGES / "train").mkdir(parents=True),
            "is a mixture of layouts: it has train/ and ILSVRC/Data/CLS-LOC/",
        ),
        (written("val/loose.JPEG"), f"val {MIXED}"),
        (written("train/loose.JPEG"), f"train {MIXED}"),
        (removed(f"val/{SECOND}"), f"val has no image of the class {SECOND}$"),
        (removed(f"train/{SECOND}"), f"val/{SECOND} is a class that train/ does not have"),
        (
            lambda source: shutil.copy(
                source / "val" / FIRST / "ILSVRC2012_val_00000001.JPEG", source / "val" / SECOND
            ),
            f"val/{FIRST}/ILSVRC2012_val_00000001.JPEG and .*{SECOND}/ILSVRC2012_val_00000001.JPEG "
            "have the same name",
        ),
    ],
)
def test_folders(damage: Damage, message: str, source: Path) -> None:
    damage(source)
    _refused(source, message)


def test_a_folder_without_images_says_what_is_expected(tmp_path: Path) -> None:
    layouts = "archives.*train/<wnid>/.*ILSVRC/Data/CLS-LOC/.*train-.*parquet"
    expected = f"holds no ImageNet: expected .*{layouts}"
    _refused(tmp_path, expected)
    (tmp_path / "file").touch()
    _refused(tmp_path / "file", "cannot read .*file: Not a directory")


def test_a_folder_that_may_not_be_read(unprivileged: Path) -> None:
    (unprivileged / "closed").mkdir(mode=0)
    _refused(unprivileged / "closed", "cannot read .*closed: Permission denied")


# Labels of a flat val/


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ImageId", "Image", r"csv, line 1: expected 'ImageId,PredictionString'"),
        (f",{THIRD} 1 2", f",{THIRD} 1", "line 2: expected an image and boxes of one class"),
        (f",{THIRD} 1 2 30 40 \n", "\n", "line \\d: expected an image and boxes"),
        (f"{THIRD} 1 2", "n09999999 1 2", "expected an image and boxes of one class"),
        (f",{THIRD} 1 2 30 40 \n", ",n09 1 2 3 4\n", "n09 is a class that the training images"),
        ("00000001,", "00000002,", "ILSVRC2012_val_00000002 already has a label"),
        ("00000001,", "00000099,", "csv has no label for ILSVRC2012_val_00000001.JPEG$"),
        (
            "\nILSVRC2012_val_00000001",
            f"\nILSVRC2012_val_00000099,{FIRST} 1 2 3 4\nILSVRC2012_val_00000001",
            "names ILSVRC2012_val_00000099, which is not in .*val$",
        ),
    ],
)
def test_kaggles_solution(old: str, new: str, message: str, source: Path) -> None:
    layouts.kaggle(source)
    _edit(source / "LOC_val_solution.csv", old, new)
    _refused(source, message)


def test_two_images_of_one_label(source: Path) -> None:
    layouts.solution(source)
    image = source / "val" / "ILSVRC2012_val_00000001.JPEG"
    shutil.copy(image, image.with_suffix(".jpg"))
    _refused(source, "val_00000001.JPEG and ILSVRC2012_val_00000001.jpg have one label in .*csv")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "val has no label for ILSVRC2012_val_00000001.JPEG"),
        ("<annotation>", "00000001.xml is not XML: no element found"),
        ("<annotation/>", "00000001.xml: expected objects of one class, it has 0"),
        (
            "<a><object><name>n01440764</name></object><object><name>n2</name></object></a>",
            "00000001.xml: expected objects of one class, it has 2",
        ),
    ],
)
def test_kaggles_annotations(content: str | None, message: str, source: Path) -> None:
    layouts.kaggle_annotated(source)
    path = source / "ILSVRC/Annotations/CLS-LOC/val/ILSVRC2012_val_00000001.xml"
    path.unlink() if content is None else path.write_text(content)
    _refused(source, message)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (f"{SECOND} dog", "n09999999 dog", f"train/{SECOND} is a class that .*mapping.txt does"),
        (f"{SECOND} dog", f"{SECOND} dog\nn09 x", "mapping.txt: expected a wnid and its words"),
        (f"{SECOND} dog", f"{FIRST} dog", "mapping.txt: expected a wnid .* each wnid once"),
        (
            f"{SECOND} dog",
            f"{SECOND} dog\nn09999999 cat",
            "train lacks the class n09999999, which .*mapping.txt names$",
        ),
    ],
)
def test_kaggles_classes(old: str, new: str, message: str, source: Path) -> None:
    layouts.kaggle(source)
    _edit(source / "LOC_synset_mapping.txt", old, new)
    _refused(source, message)


META = "ILSVRC2012_devkit_t12/data/meta.mat"
TRUTH = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (removed(TRUTH), "cannot read .*ground_truth.txt: No such file"),
        (written(TRUTH, "1\n9\n"), "ground_truth.txt, line 2: 9 is not a class"),
        (written(TRUTH, "1\n2\n"), r"no label for \S+00000003.JPEG \(and 9 more\)"),
        (written(META, b"x" * 200), "meta.mat is damaged"),
    ],
)
def test_the_devkit(damage: Damage, message: str, source: Path) -> None:
    layouts.devkit(source)
    damage(source)
    _refused(source, message)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no archive",
        gzip.compress(bytes(10_240), mtime=0),
        gzip.compress(b"x" * 999, mtime=0)[:50],
    ],
    ids=["empty", "no archive", "an empty archive", "a truncated archive"],
)
def test_the_devkits_archive(content: bytes, source: Path) -> None:
    layouts.flatten(source)
    (source / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(content)
    _refused(source, "cannot read .*ILSVRC2012_devkit_t12.tar.gz: ")


class _Harmful:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("harm",)


@pytest.mark.parametrize("what", [b"no archive", {"a": 1}, ({}, [1, 2]), ({}, [_Harmful()])])
def test_meta_bin(
    what: object, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pickle

    monkeypatch.chdir(tmp_path)
    layouts.flatten(source)
    path = source / "meta.bin"
    if isinstance(what, bytes):
        path.write_bytes(what)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(what))
    _refused(source, "cannot read .*meta.bin: it is not a file written by torchvision")
    assert not (tmp_path / "harm").exists()


# Parquet


TRAIN = "data/train-00000-of-00002.parquet"


def _train(source: Path) -> Path:
    return source / TRAIN


def _rewrite(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    change(rows := read_table(path).to_pylist())
    layouts.write_parquet(path, rows)


def _row(row: int, **changed: object) -> Damage:
    return lambda source: _rewrite(_train(source), lambda rows: rows[row].update(changed))


def _image(row: int, **changed: object) -> Damage:
    return lambda source: _rewrite(_train(source), lambda rows: rows[row]["image"].update(changed))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (removed(TRAIN), "data lacks train-00000-of-00002.parquet$"),
        (
            lambda s: _train(s).rename(s / "data" / "train-00000-of-00003.parquet"),
            "has train files of two sets, of 00002 and of 00003",
        ),
        (
            lambda s: [p.unlink() for p in s.glob("data/validation-*")],
            "data has no validation-00000-of-N.parquet",
        ),
        (resized(TRAIN, 3000), "cannot read .*00000-of-00002.parquet, or it is"),
        (written(TRAIN), "cannot read .*00000-of-00002.parquet, or it is"),
        (_image(3, path=None), "00000-of-00002.parquet, row 3, has no path"),
        (_image(3, path="x.JPEG"), "row 3: its path has no wnid, as in x_n01440764.JPEG"),
        (_row(2, label=None), "00000-of-00002.parquet, row 2, has no label"),
        (_row(2, label=7), r"row 2 has the label 7, but n\d+ is number \d of the sorted classes"),
        (
            lambda s: _rewrite(_train(s), lambda rows: rows.append(rows[0])),
            r"00002.parquet, row 0 and .*00002.parquet, row 14 have the same name",
        ),
        (
            lambda s: _rewrite(
                next(s.glob("data/validation-00000*")), lambda rows: rows[2].update(label=3)
            ),
            r"validation-\S+, row 2 has the label 3 and the class n\d+, which the training",
        ),
    ],
)
def test_parquet(damage: Damage, message: str, source: Path) -> None:
    layouts.parquet(source)
    damage(source)
    _refused(source, message)


def test_parquet_of_other_columns(source: Path) -> None:
    layouts.parquet(source)
    write_table(pa.table({"jpg": [b"x"], "cls": ["dog"]}), _train(source))
    _refused(source, "has the columns jpg: binary, cls: string; expected image: struct<bytes:")
    write_table(pa.table({"image": [b"x"], "label": [1]}), _train(source))
    _refused(source, "has the columns image: binary, label: int64; expected image: struct<bytes:")


def test_parquet_that_names_more_classes(source: Path) -> None:
    layouts.parquet(source)
    rows = read_table(_train(source)).to_pylist()
    layouts.write_parquet(_train(source), rows, (*layouts.WORDS, "axolotl"))
    _refused(source, "has training images of 3 classes, and names of 4")


def test_parquet_without_its_package(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layouts.parquet(source)
    missing = extras.Package("package_that_nobody_has", "pip install it")
    monkeypatch.setattr(parquet, "PARQUET", missing)
    _refused(source, "reading Parquet needs the package 'pyarrow': pip install it")
    assert "[parquet]" in extras.PARQUET.remedy


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "row 5, has no bytes$"), (b"", "row 5, has no bytes$"), (b"x", "row 5 is corrupt: ")],
)
def test_an_image_in_parquet(content: bytes | None, message: str, source: Path) -> None:
    layouts.parquet(source)
    _image(5, bytes=content)(source)
    with pytest.raises(DatasetError, match=rf"(?m)train-00000-of-00002.parquet, {message}"):
        prepare_imagenet(source, source.parent / "x", Options(cores=1))


def test_parquet_damaged_behind_its_columns(source: Path) -> None:
    """The bytes of the images are read last: what lists them has not seen them."""
    layouts.parquet(source)
    content = bytearray(_train(source).read_bytes())
    content[4:200] = bytes(196)
    _train(source).write_bytes(content)
    assert _open(source).training
    with pytest.raises(DatasetError, match=r"cannot read .*00000-of-00002.parquet, or it is"):
        prepare_imagenet(source, source.parent / "x", Options(cores=1))


# Targets that are a source


@pytest.mark.parametrize("layout", ["folders", "kaggle", "parquet"])
def test_a_target_where_the_source_is(layout: str, source: Path) -> None:
    layouts.LAYOUTS[layout](source)
    for target in (source, source.parent):
        with pytest.raises(DatasetError, match="it is not empty; name a new folder"):
            prepare_imagenet(source, target)
    for folder in _open(source).folders:
        with pytest.raises(DatasetError, match=r"it is inside its source \S+; name a folder"):
            prepare_imagenet(source, folder / "x")
    prepare_imagenet(source, source / "prepared")
