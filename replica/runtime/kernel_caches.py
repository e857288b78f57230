"""Empty cache folders for compiled and tuned kernels.

Frameworks and drivers cache compiled and tuned kernels for later processes of the same user, so a
second run would start faster than the first. Each process of a run therefore has a new cache
folder on its node, and every run is charged for its compilations.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from aiperf_hpc.errors import AIPerfError, restated
from aiperf_hpc.system.software import KERNEL_CACHES

PREFIX: Final = f"aiperf-hpc-kernels-{os.uname().nodename}_"
UNLOCKED_SECONDS: Final = 60.0
"""Age from which an unlocked folder is abandoned; a younger one may be about to be locked."""


@contextmanager
def own_kernel_caches(environment: MutableMapping[str, str]) -> Iterator[Path]:
    """Direct the kernel caches of frameworks loaded later to a new folder while the block runs.

    Folders that killed processes of this user left in TMPDIR are removed.

    Args:
        environment: environment of this process; the variables of each cache are overwritten.

    Raises:
        AIPerfError: the folder cannot be created in TMPDIR.
    """
    what = "cannot create a folder for compiled kernels"
    remedy = "; set TMPDIR to a folder on the node that can be written"
    with restated(what, AIPerfError, remedy, caught=OSError):
        folder = TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
    with folder as name, _lock(Path(name)):
        _remove_abandoned(Path(name).parent)
        for variable, inside in KERNEL_CACHES.items():
            environment[variable] = str(Path(name) / inside)
        yield Path(name)


@contextmanager
def _lock(folder: Path) -> Iterator[bool]:
    """Lock a folder while the block runs; yield whether it is locked. A killed process's is not."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked = True
    except OSError:  # Locked by another process, or a file system without locks.
        locked = False
    try:
        yield locked
    finally:
        os.close(file)


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # Another process removes it, too.
            found = folder.lstat()
            old = time.time() - found.st_mtime > UNLOCKED_SECONDS
            if old and found.st_uid == os.getuid():
                with _lock(folder) as locked:
                    if locked:
                        shutil.rmtree(folder)
