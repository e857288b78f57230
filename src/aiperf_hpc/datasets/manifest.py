"""The manifest of a prepared dataset folder, which both sides read."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.trial import DatasetInfo
from aiperf_hpc.untrusted.bounds import first_fault

MANIFEST = "dataset.json"


def save_dataset_manifest(folder: Path, info: DatasetInfo) -> None:
    """Write the manifest; the last step of preparing a dataset."""
    write_whole(folder / MANIFEST, info.model_dump_json(indent=1) + "\n")


def dataset_name(folder: Path) -> str:
    """Return which dataset was prepared in a folder.

    Raises:
        DatasetError: none was, or its manifest cannot be read.
    """
    prepare = f"make it with `aiperf data prepare NAME --from SOURCE --to {folder}`"
    return _read_manifest(folder, "", prepare).name


def load_dataset_manifest(folder: Path, name: str) -> DatasetInfo:
    """Read the manifest of dataset ``name``.

    Raises:
        DatasetError: the folder is missing, unreadable, not prepared, or of another dataset.
    """
    prepare = f"make it with `aiperf data prepare {name} --from SOURCE --to {folder}`"
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
