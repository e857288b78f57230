"""A host's clocks: compared with the file server's, and read together to detect a slowed clock.

No host of a cluster can read another host's clock, but each can have the server set the time of a
file in the shared directory. The offsets of two hosts from the same server give the offset between
the hosts. This needs no NTP, no service and no privileges.

A preloaded library can replace ``clock_gettime`` and thereby slow every clock that Python reads. It
does not intercept a direct system call, and it affects neither the kernel's files nor the times
that a file server sets.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.bounds import Finite

SAMPLES = 3
"""Number of readings of the clocks; the fastest reading is used."""
_CLOCK_GETTIME = {
    "aarch64": 113, "loongarch64": 113, "ppc64le": 246, "riscv64": 113, "s390x": 260, "x86_64": 228,
}  # fmt: skip
"""Number of the system call ``clock_gettime`` by architecture (asm/unistd.h)."""
_LIBRARY = "libc.so.6"
"""The file of glibc: symbols looked up in it are not replaced by preloaded libraries."""


class Clocks(Value):
    """Clocks of one host, read in immediate succession by one process; all in seconds."""

    utc: Time
    """Seconds since 1970 by the clock of the records' UTC times."""
    monotonic: Time
    """Seconds of the monotonic clock that times the run and the records."""
    raw: Time
    """Seconds of the kernel's CLOCK_MONOTONIC_RAW, which no time service adjusts."""
    raw_directly: bool
    """Whether ``raw`` was read by a direct system call, which bypasses preloaded libraries."""
    boot: Time
    """Seconds since boot, including suspension, to a hundredth: the kernel's /proc/uptime."""
    spread_seconds: Annotated[Time, Field(ge=0)]
    """Duration of the reading: the maximum error of differences between these clocks."""
    answered_by: str
    """File of the ``clock_gettime`` that this process calls; empty if unknown."""
    server: ClockReading
    """Offset of the host's UTC from the file server's clock."""


def read_clocks(folder: Path) -> Clocks:
    """Read the clocks of this host and the clock of the server of ``folder``.

    Raises:
        OSError: the folder cannot be written, or a clock cannot be read.
    """
    server = read_clock(folder)
    return min((_read(server) for _ in range(SAMPLES)), key=lambda clocks: clocks.spread_seconds)


def _read(server: ClockReading) -> Clocks:
    before = raw_seconds()
    utc, monotonic = time.time(), time.monotonic()
    raw = raw_seconds()
    boot = float(Path("/proc/uptime").read_text("ascii").split()[0])
    after = raw_seconds()
    return Clocks(
        utc=utc,
        monotonic=monotonic,
        raw=raw,
        raw_directly=_library() is not None,
        boot=boot,
        spread_seconds=max(0.0, after - before),
        answered_by=answering_library(),
        server=server,
    )


class _TimeSpec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def raw_seconds() -> float:
    """Return CLOCK_MONOTONIC_RAW, by a direct system call if its number is known.

    Raises:
        OSError: the system call fails.
    """
    library = _library()
    if library is None:
        return float(time.clock_gettime(time.CLOCK_MONOTONIC_RAW))
    told, number = _TimeSpec(), _CLOCK_GETTIME[os.uname().machine]
    if library.syscall(number, time.CLOCK_MONOTONIC_RAW, ctypes.byref(told)) != 0:
        raise OSError(ctypes.get_errno(), "clock_gettime")
    seconds: float = told.seconds + told.nanoseconds * 1e-9
    return seconds


@cache
def _library() -> Any:  # noqa: ANN401 -- ctypes' functions have no types
    """Return glibc, or None if the C library is another or the system call's number is unknown."""
    if os.uname().machine not in _CLOCK_GETTIME:
        return None
    try:
        return ctypes.CDLL(_LIBRARY, use_errno=True)
    except OSError:  # Another C library, e.g. musl.
        return None


class _Symbol(ctypes.Structure):
    """``Dl_info`` of dladdr(3)."""

    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


@cache
def answering_library() -> str:
    """Return the file of the ``clock_gettime`` that this process calls, or "" if it is unknown."""
    everything: Any = ctypes.CDLL(None)
    if not hasattr(everything, "dladdr"):
        return ""
    found = _Symbol()
    address = ctypes.cast(everything.clock_gettime, ctypes.c_void_p)
    return os.fsdecode(found.file) if everything.dladdr(address, ctypes.byref(found)) else ""


Time = Finite
"""Seconds of a clock or between two readings; records with other values are malformed."""


class ClockReading(Value):
    """A host's clock compared with the file server's."""

    ahead_seconds: Time
    """Seconds by which the host is ahead; negative if it is behind."""
    precision_seconds: Time
    """Maximum error of the offset in seconds: half of the server's response time."""


FileClock = Callable[[Path, Callable[[], float]], ClockReading | None]
"""Function that compares a clock, in UTC seconds, with the clock of a folder's server; it returns
None if the comparison is meaningless."""


def read_clock(folder: Path, clock: Callable[[], float] = time.time) -> ClockReading:
    """Compare ``clock``, in UTC seconds, with the clock of the server of ``folder``.

    A file's time is set to "now" by the host that stores the file: on NFS the server (SETATTR with
    SET_TO_SERVER_TIME, RFC 1813, 2.6). If clients set it (Lustre, local disks), the offset is 0
    regardless of the clocks.

    Raises:
        OSError: the folder cannot be written.
    """
    handle, name = tempfile.mkstemp(prefix=".clock-", dir=folder)
    try:
        readings = [_reading(handle, clock) for _ in range(SAMPLES)]
    finally:
        os.close(handle)
        Path(name).unlink()
    return min(readings, key=lambda reading: reading.precision_seconds)


def _reading(handle: int, clock: Callable[[], float]) -> ClockReading:
    before = clock()
    os.utime(handle)
    after = clock()
    stamped = os.fstat(handle).st_mtime
    return ClockReading(
        ahead_seconds=(before + after) / 2.0 - stamped, precision_seconds=(after - before) / 2.0
    )
