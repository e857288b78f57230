"""A host's clocks: compared with the file server's, and read together to detect a slowed clock.

No host of a cluster can read another's clock, but each can have a file of the shared directory
stamped: two hosts that know their offsets from the same server know how far apart they are. This
needs no NTP, no service and no privileges.

A library that is preloaded can answer ``clock_gettime`` in the kernel's place, and so slow every
clock that Python reads. It does not intercept a direct system call, and it neither writes the
kernel's files nor stamps a file server's.
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
"""How often clocks are read; the quickest reading counts."""
_CLOCK_GETTIME = {
    "aarch64": 113, "loongarch64": 113, "ppc64le": 246, "riscv64": 113, "s390x": 260, "x86_64": 228,
}  # fmt: skip
"""The number of the system call ``clock_gettime`` of each architecture (asm/unistd.h)."""
_LIBRARY = "libc.so.6"
"""glibc's own file: what is looked up in it is not what was loaded before it."""


class Clocks(Value):
    """Clocks of one host, read one right after the other by one process; all in seconds."""

    utc: Time
    """Since 1970, as the records are stamped."""
    monotonic: Time
    """Of the clock that times the run, as the records are stamped."""
    raw: Time
    """Of the kernel's CLOCK_MONOTONIC_RAW, which no time service corrects."""
    raw_directly: bool
    """Whether the kernel itself was asked for it, past the libraries of the process."""
    boot: Time
    """Since the host started, suspended or not, to a hundredth: the kernel's /proc/uptime."""
    spread_seconds: Annotated[Time, Field(ge=0)]
    """How long reading them took: so wrong may their differences be."""
    answered_by: str
    """The file whose function ``clock_gettime`` this process calls; empty when that is unknown."""
    server: ClockReading
    """How far UTC is ahead of the file server's clock."""


def read_clocks(folder: Path) -> Clocks:
    """Read the clocks of this host and that of the server of ``folder``.

    Raises:
        OSError: the folder cannot be written, or the kernel does not tell.
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
    """Return CLOCK_MONOTONIC_RAW, by a system call of our own where its number is known.

    Raises:
        OSError: the kernel refuses.
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
    """Return glibc itself; None where it or the system call's number is another."""
    if os.uname().machine not in _CLOCK_GETTIME:
        return None
    try:
        return ctypes.CDLL(_LIBRARY, use_errno=True)
    except OSError:  # Another C library, such as musl.
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
    """Return the file whose ``clock_gettime`` this process calls; empty when that is unknown."""
    everything: Any = ctypes.CDLL(None)
    if not hasattr(everything, "dladdr"):
        return ""
    found = _Symbol()
    address = ctypes.cast(everything.clock_gettime, ctypes.c_void_p)
    return os.fsdecode(found.file) if everything.dladdr(address, ctypes.byref(found)) else ""


Time = Finite
"""Seconds, of a clock or between two of its readings: a record with any other is none."""


class ClockReading(Value):
    """A host's clock beside the file server's."""

    ahead_seconds: Time
    """How far the host is ahead; negative when it is behind."""
    precision_seconds: Time
    """How wrong that may be: half of the time that the server took to answer."""


FileClock = Callable[[Path, Callable[[], float]], ClockReading | None]
"""What compares a clock, UTC seconds, with that of the server of a folder, where that says
something."""


def read_clock(folder: Path, clock: Callable[[], float] = time.time) -> ClockReading:
    """Compare ``clock``, UTC seconds, with that of the server of ``folder``.

    A file's time is set to "now" by whoever keeps the file: on NFS the server (SETATTR with
    SET_TO_SERVER_TIME, RFC 1813, 2.6). File systems whose clients set it (Lustre, local disks)
    say 0 whatever the clocks do.

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
