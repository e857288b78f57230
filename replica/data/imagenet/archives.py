"""The official archives that a prepared ImageNet folder was made from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from aiperf_hpc.errors import DatasetError, reason_of
from aiperf_hpc.run.paths import write_whole

ARCHIVES = "archives.json"
"""The MD5 of the official archives that a folder was prepared from; only there if it was."""

_ARCHIVES = TypeAdapter(dict[str, str])


def save_archives(folder: Path, archives: Mapping[str, str]) -> None:
    """Write the MD5 of the archives that a folder was prepared from. Raises OSError."""
    write_whole(folder / ARCHIVES, _ARCHIVES.dump_json(dict(archives), indent=1) + b"\n")


def load_archives(folder: Path) -> dict[str, str]:
    """Return the MD5 of the archives that a folder was prepared from; none if it was not.

    Raises:
        DatasetError: the file cannot be read.
    """
    path = folder / ARCHIVES
    try:
        return _ARCHIVES.validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise DatasetError(f"dataset 'imagenet': cannot read {path}: {reason_of(error)}") from None
    except ValidationError:
        raise DatasetError(f"dataset 'imagenet': {path} is damaged; prepare it again") from None
