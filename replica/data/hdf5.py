"""HDF5 files of official datasets, the only use of h5py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiperf_hpc.errors import DatasetError, reason_of
from aiperf_hpc.extras import HDF5

if TYPE_CHECKING:
    import h5py


def require_h5py() -> None:
    """Raise DatasetError if h5py is not installed."""
    if not HDF5.installed:
        raise DatasetError(f"reading HDF5 needs the package 'h5py': {HDF5.remedy}")


def open_file(path: Path) -> h5py.File:
    """Open a file for reading. Raises OSError and h5py's exceptions; see ``reading``."""
    import h5py  # Imported here because only preparation needs it.

    with path.open("rb"):  # Raises OSError instead of ValueError if the path is not a file.
        pass
    return h5py.File(path, "r")


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Open a file for reading.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is damaged, which may be detected while it is read.
    """
    with reading(), open_file(path) as file:
        yield file


@contextmanager
def reading() -> Iterator[None]:
    """Convert h5py's exceptions for a damaged file to a ValueError of one line.

    A damaged header can also yield wrong types and sizes. System errors remain OSErrors with the
    system's message, because h5py's message contains times and addresses.
    """
    try:
        yield
    except (OSError, RuntimeError, TypeError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno:
            raise OSError(error.errno, os.strerror(error.errno)) from None
        raise ValueError(f"it is not a complete HDF5 file: {reason_of(error)}") from None


def array_of(file: h5py.File, name: str) -> Any:  # noqa: ANN401 -- h5py has no types
    """Return an array of a file without reading it. Raises ValueError if there is none."""
    import h5py

    found = file.get(name)
    if not isinstance(found, h5py.Dataset):
        raise ValueError(f"it has no dataset {name}")
    return found
