"""One service at a time changes what is in a folder."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from aiperf_hpc.errors import RunDirectoryError, UsageError, reason_of
from aiperf_hpc.trial import Value

FOLDER = ".aiperf-service"
"""Where a service keeps what is its own, in the folder of the runs."""


class Owner(Value):
    """Who changes a folder, for people."""

    host: str
    pid: int
    since_utc: float

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.since_utc))
        return f"process {self.pid} on {self.host} since {since}"


@contextmanager
def owned(folder: Path) -> Iterator[Path]:
    """Own a folder while the block runs; gives where the service keeps what is its own.

    The lock is the kernel's or the file server's: it ends with the process, however that ends.

    Raises:
        UsageError: another service has it.
        RunDirectoryError: nothing can be written there.
    """
    own = folder / FOLDER
    try:
        own.mkdir(exist_ok=True)
        file = os.open(own / "owner.json", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RunDirectoryError(
            f"cannot write in {folder}, where runs are to be started: {reason_of(error)}; "
            "without --token-file it is only read"
        ) from None
    try:
        _lock(file, folder)
        me = Owner(host=socket.gethostname(), pid=os.getpid(), since_utc=time.time())
        os.ftruncate(file, 0)
        os.pwrite(file, me.model_dump_json().encode(), 0)
        yield own
    finally:
        os.close(file)


def _lock(file: int, folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            f"{folder} is served already, by {_said(file)}: ask that service, or end it; without "
            "--token-file any number of services may read"
        ) from None
    except OSError as error:
        raise RunDirectoryError(
            f"the file system of {folder} has no locks ({reason_of(error)}), by which one service "
            "changes it at a time; without --token-file it is only read"
        ) from None


def _said(file: int) -> str:
    try:
        return str(Owner.model_validate_json(os.pread(file, 4096, 0)))
    except ValidationError:
        return "another process"
