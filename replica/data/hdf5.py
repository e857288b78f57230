"""HDF5 files of others' datasets, by h5py, which is needed for nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.extras import HDF5

if TYPE_CHECKING:
    import h5py


def require_h5py() -> None:
    """Raises DatasetError where h5py is not installed."""
    if not HDF5.installed:
        raise DatasetError(f"reading HDF5 needs the package 'h5py': {HDF5.remedy}")


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Give a file, opened for reading.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged, then or while it is read.
    """
    import h5py  # Imported here, since only preparing needs it.

    with path.open("rb"):  # So that what is no file at all is told from what is damaged.
        pass
    with reading(), h5py.File(path, "r") as file:
        yield file


@contextmanager
def reading() -> Iterator[None]:
    """Tell what h5py raises of a damaged file in a ValueError of one line.

    Of a damaged header that is also of types and sizes that there are not. What the system refuses
    stays an OSError, in the system's own words: h5py's have times and addresses in them.
    """
    try:
        yield
    except (OSError, RuntimeError, TypeError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno:
            raise OSError(error.errno, os.strerror(error.errno)) from None
        raise ValueError(f"it is no whole HDF5 file: {' '.join(str(error).split())}") from None
