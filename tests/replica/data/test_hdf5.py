"""What is said of an HDF5 file that cannot be read."""

from __future__ import annotations

import errno

import pytest

from aiperf_hpc.errors import reason_of
from aiperf_hpc.replica.data import hdf5


def test_what_the_system_refuses_is_no_damage_and_is_said_in_its_words() -> None:
    with pytest.raises(OSError, match="Input/output error") as caught, hdf5.reading():
        raise OSError(errno.EIO, "Can't read data (buf = 0x7f12, time = Mon)")
    assert reason_of(caught.value) == "Input/output error"


@pytest.mark.parametrize("kind", [OSError, RuntimeError, TypeError, MemoryError])
def test_what_h5py_finds_itself_is_damage_and_one_line(kind: type[Exception]) -> None:
    with (
        pytest.raises(ValueError, match="^it is not a complete HDF5 file: bad header$"),
        hdf5.reading(),
    ):
        raise kind("bad\n  header")
