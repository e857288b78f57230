"""The manifest of a prepared dataset folder, which both sides read."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.trial import DatasetInfo

MANIFEST = "dataset.json"


def save_dataset_manifest(folder: Path, info: DatasetInfo) -> None:
    """Write the manifest; the last step of preparing a dataset."""
    write_whole(folder / MANIFEST, info.model_dump_json(indent=1) + "\n")


def load_dataset_manifest(folder: Path, name: str) -> DatasetInfo:
    """Read the manifest of dataset ``name``.

    Raises:
        DatasetError: the folder is missing, unreadable, not prepared, or of another dataset.
    """
    prepare = f"make it with `aiperf data prepare {name} --from SOURCE --to {folder}`"
    if not folder.is_dir():
        raise DatasetError(f"dataset '{name}': there is no folder {folder}; {prepare}")
    try:
        info = DatasetInfo.model_validate_json((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise DatasetError(f"dataset '{name}': {folder} has no {MANIFEST}; {prepare}") from None
    except OSError as error:
        raise DatasetError(
            f"dataset '{name}': cannot read {error.filename}: {error.strerror}"
        ) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise DatasetError(
            f"dataset '{name}': {folder / MANIFEST} is damaged: {first['msg']}; {prepare}"
        ) from None
    if info.name != name:
        raise DatasetError(f"dataset '{name}': {folder} holds '{info.name}'; {prepare}")
    return info
