"""Prepared dataset folders and the checksums of official datasets, shared by primary and replicas.

The publisher of ImageNet states the MD5 of each archive (image-net.org, ILSVRC 2012). It differs
from a dataset's SHA-256, which is the same for every layout of the same images. A folder prepared
from the archives records both.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from aiperf_hpc.errors import DatasetError, raising, restated
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.trial import DatasetInfo
from aiperf_hpc.untrusted.bounds import first_fault

MANIFEST = "dataset.json"
ARCHIVES_FILE = "archives.json"
"""File with the MD5 of the official archives that a folder was prepared from, if any."""
TRAINING, VALIDATION = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"

ARCHIVES: Mapping[str, Mapping[str, str]] = {
    "imagenet": {
        TRAINING: "1d675b47d978889d74fa0da5fadfb00e",
        VALIDATION: "29b22e2961454d5413ddabcf34fc5622",
        DEVKIT: "fa75699e90414af021442c21a62c3abf",
    }
}
"""Published MD5 of the archives of each dataset, by file name."""
DIGESTS: Mapping[str, frozenset[str]] = {"imagenet": frozenset()}
"""Known SHA-256 of datasets prepared from these archives; none in this version."""

PINNED: Mapping[str, DatasetInfo] = {
    info.name: info
    for info in (
        DatasetInfo.of_labelled_images(
            name="digits",
            sha256="2f15a76928b08dfd9d5c5db343c26aa19b8aa7b69850811525a2ed8d75ff8991",
            classes=10,
            shape=(8, 8, 1),
            train_samples=1437,
            validation_samples=360,
        ),
        DatasetInfo.of_labelled_images(
            name="cifar10",
            sha256="013ba16d14ecc4829da62bf2af648ca30f600491ecb3e7f329c827db0dd17522",
            classes=10,
            shape=(32, 32, 3),
            train_samples=50_000,
            validation_samples=10_000,
        ),
    )
}
"""Datasets that have one content and one split, by name."""

_ARCHIVES = TypeAdapter(dict[str, str])


def read_errors(what: object, dataset: str = "", remedy: str = "") -> AbstractContextManager[None]:
    """Convert an OSError of a read operation into a one-line DatasetError.

    Args:
        what: the file, or its description.
        dataset: name of the dataset, if the message begins with it.
        remedy: end of the message.
    """
    which = f"dataset '{dataset}': " if dataset else ""
    end = f"; {remedy}" if remedy else ""
    return restated(f"{which}cannot read {what}", DatasetError, end, caught=OSError)


def stat_of(path: Path) -> os.stat_result:
    """Return the status of a file. Raises DatasetError."""
    with read_errors(path):
        return path.stat()


def save_dataset_manifest(folder: Path, info: DatasetInfo) -> None:
    """Write the manifest, as the last step of preparing a dataset."""
    write_whole(folder / MANIFEST, info.model_dump_json(indent=1) + "\n")


def dataset_name(folder: Path) -> str:
    """Return the name of the dataset in a prepared folder.

    Raises:
        DatasetError: the folder is not prepared, or its manifest cannot be read.
    """
    prepare = f"create it with `aiperf data prepare NAME --from SOURCE --to {folder}`"
    return _read_manifest(folder, "", prepare).name


def load_dataset_manifest(folder: Path, name: str) -> DatasetInfo:
    """Read the manifest of dataset ``name``.

    Raises:
        DatasetError: the folder is missing, unreadable, not prepared, or of another dataset.
    """
    prepare = f"create it with `aiperf data prepare {name} --from SOURCE --to {folder}`"
    info = _read_manifest(folder, f"dataset '{name}': ", prepare)
    if info.name != name:
        raise DatasetError(
            f"dataset '{name}': {folder} holds '{info.name}'; name the folder of '{name}', which "
            f"`aiperf data prepare {name} --from SOURCE --to FOLDER` makes"
        )
    return info


def _read_manifest(folder: Path, which: str, prepare: str) -> DatasetInfo:
    if not folder.is_dir():
        raise DatasetError(f"{which}there is no folder {folder}; {prepare}")
    try:
        return DatasetInfo.model_validate_json((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise DatasetError(f"{which}{folder} has no {MANIFEST}; {prepare}") from None
    except OSError as error:
        raise DatasetError(f"{which}cannot read {error.filename}: {error.strerror}") from None
    except ValidationError as error:
        damaged = f"{which}{folder / MANIFEST} is damaged: {first_fault(error)}"
        raise DatasetError(f"{damaged}; {prepare}") from None


def save_archives(folder: Path, archives: Mapping[str, str]) -> None:
    """Write the MD5 of the official archives that a folder was prepared from. Raises OSError."""
    write_whole(folder / ARCHIVES_FILE, _ARCHIVES.dump_json(dict(archives), indent=1) + b"\n")


def load_archives(folder: Path) -> dict[str, str]:
    """Return the MD5 of the official archives that a folder was prepared from; empty if none.

    Raises:
        DatasetError: the file cannot be read.
    """
    path = folder / ARCHIVES_FILE
    damaged = DatasetError(f"dataset 'imagenet': {path} is damaged; prepare it again")
    with raising(damaged, ValidationError), read_errors(path, "imagenet"):
        return _ARCHIVES.validate_json(path.read_bytes()) if path.exists() else {}


def unlike_pinned(info: DatasetInfo) -> list[str]:
    """Return the values in which a dataset differs from the pinned one of its name or SHA-256."""
    for known in PINNED.values():
        if info.name == known.name or info.sha256 == known.sha256:
            return [name for name, value in known if getattr(info, name) != value]
    return []


def why_unofficial(info: DatasetInfo) -> str | None:
    """Return why a dataset does not count as the official one, or None if it does."""
    if info.name not in ARCHIVES:
        return f"{info.name} is not an official dataset"
    if info.sha256 in DIGESTS[info.name] or info.archives == ARCHIVES[info.name]:
        return None
    if info.archives:
        return "it was prepared from archives whose MD5 differs from the published one"
    return (
        f"it was not prepared from the official archives, and SHA-256 {info.sha256[:12]} is not "
        "known to be theirs; prepare it from the archives"
    )
