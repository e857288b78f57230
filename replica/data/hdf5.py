"""HDF5 files of official datasets, read by h5py, which nothing else needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.extras import HDF5

if TYPE_CHECKING:
    import h5py


def require_h5py() -> None:
    """Raise DatasetError if h5py is not installed."""
    if not HDF5.installed:
        raise DatasetError(f"reading HDF5 needs the package 'h5py': {HDF5.remedy}")


def open_file(path: Path) -> h5py.File:
    """Open a file for reading. Raises OSError and h5py's exceptions; see ``reading``."""
    import h5py  # Imported here, since only preparing needs it.

    with path.open("rb"):  # Raises OSError for what is no file, rather than ValueError.
        pass
    return h5py.File(path, "r")


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Open a file for reading.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged, then or while it is read.
    """
    with reading(), open_file(path) as file:
        yield file


@contextmanager
def reading() -> Iterator[None]:
    """Turn h5py's exceptions on a damaged file into a ValueError of one line.

    A damaged header also has wrong types and sizes. An error of the system stays an OSError, with
    the system's message: h5py's has times and addresses in it.
    """
    try:
        yield
    except (OSError, RuntimeError, TypeError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno:
            raise OSError(error.errno, os.strerror(error.errno)) from None
        raise ValueError(f"it is no whole HDF5 file: {' '.join(str(error).split())}") from None


def array_of(file: h5py.File, name: str) -> Any:  # noqa: ANN401 -- h5py has no types
    """Return an array of a file, which is not read yet. Raises ValueError if there is none."""
    import h5py

    found = file.get(name)
    if not isinstance(found, h5py.Dataset):
        raise ValueError(f"it has no dataset {name}")
    return found
