"""Access to storage that may be shared, full or unavailable: retries, durability, checks."""

from __future__ import annotations

import errno
import math
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.errors import RunDirectoryError, StorageError, reason_of

T = TypeVar("T")

PASSING = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EREMOTEIO}
)
"""Transient errors: of a full disk, an exceeded quota or a restarting file server."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0
PROMPT_SECONDS = 5.0
"""Seconds after which a call counts as waiting: on a hard NFS mount, calls hang instead of fail."""


class Retry(Protocol):
    """Performs an action on storage."""

    def __call__(self, action: Callable[[], T], what: str, verb: str = "write") -> T:
        """Perform ``action``. Raises StorageError, with ``verb`` and ``what``, if it fails."""


def no_retry(action: Callable[[], T], what: str, verb: str = "write") -> T:
    """Perform ``action`` once."""
    try:
        return action()
    except OSError as error:
        raise _failed(verb, what, error) from None


class Wait(NamedTuple):
    """A period of waiting for storage."""

    started_utc: float
    seconds: float
    reason: str
    """The failed operation and the error of the storage."""


@dataclass(slots=True, eq=False)
class _Call:
    """A call in progress."""

    since: float
    """Time from which the call counts as waiting, monotonic seconds."""
    reason: str


@dataclass(eq=False)
class BackoffRetry:
    """Repeats an action after transient errors, until it succeeds or ``give_up`` returns True.

    It is thread-safe.
    """

    give_up: Callable[[], bool]
    """Called before each pause; True ends the waiting."""
    _: KW_ONLY
    clock: Clock = SYSTEM
    """Clock of the pauses."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._waited = 0.0
        """Total seconds of all finished waits."""
        self._calls: list[_Call] = []
        """Calls in progress."""
        self._began = math.inf
        self._reason = ""
        """Reason of the current wait; ``_began`` is its start. Both are set by finished calls."""
        self._over: list[Wait] = []

    @property
    def waited(self) -> float:
        """Total seconds of waiting so far, after failures or in slow calls of any thread."""
        with self._lock:  # Once for both: a wait that ends in between would count twice.
            now = self._current()
            return self._waited + (0.0 if now is None else now.seconds)

    @property
    def waiting(self) -> Wait | None:
        """The current wait with its duration so far; None if no thread waits."""
        with self._lock:
            return self._current()

    def _current(self) -> Wait | None:
        now = self.clock.monotonic()
        oldest = min(self._calls, key=lambda call: call.since, default=None)
        if oldest is None or oldest.since > now:
            return None
        seconds = now - min(oldest.since, self._began)
        return Wait(self.clock.utc() - seconds, seconds, oldest.reason)

    def take(self) -> list[Wait]:
        """Return the waits that finished since the last call."""
        with self._lock:
            taken = self._over
            self._over = []
            return taken

    def __call__(self, action: Callable[[], T], what: str, verb: str = "write") -> T:
        pause = FIRST_PAUSE
        with self._under_way(f"cannot {verb} {what}: no answer") as call:
            while True:
                try:
                    return action()
                except OSError as error:
                    if error.errno not in PASSING or self.give_up():
                        raise _failed(verb, what, error) from None
                    self._failed(call, str(_failed(verb, what, error)))
                self.clock.wait(pause, self.give_up)
                pause = min(2 * pause, LONGEST_PAUSE)

    @contextmanager
    def _under_way(self, reason: str) -> Iterator[_Call]:
        call = _Call(self.clock.monotonic() + PROMPT_SECONDS, reason)
        with self._lock:
            self._calls.append(call)
        try:
            yield call
        finally:
            with self._lock:
                self._calls.remove(call)
                self._end(call)

    def _failed(self, call: _Call, reason: str) -> None:
        with self._lock:
            call.since = min(call.since, self.clock.monotonic())
            call.reason = reason

    def _end(self, call: _Call) -> None:
        """Record the wait that ends with a call, unless other calls still wait."""
        now = self.clock.monotonic()
        if call.since >= now:
            return
        if call.since < self._began:
            self._began = call.since
            self._reason = call.reason
        if all(other.since >= now for other in self._calls):
            seconds = now - self._began
            self._over.append(Wait(self.clock.utc() - seconds, seconds, self._reason))
            self._waited += seconds
            self._began = math.inf


Sync = Callable[[int], None]
"""Function that flushes an open file to stable storage."""


def to_stable_storage(file: int) -> None:
    """Wait until the content of an open file survives a power failure."""
    os.fsync(file)


MOST_STALE = 3
"""Number of stale-handle errors after which a handle is reopened although its file exists."""


class GrowingFile:
    """An append-only file with one writer; each addition is flushed to stable storage.

    It writes at its own offset, never at the end reported by a file server, which may be too far
    after an error, so that zeros would fill the gap. A failed addition can therefore be repeated
    any number of times and is stored once.
    """

    def __init__(self, path: Path, sync: Sync = to_stable_storage) -> None:
        """Open or create the file. Raises OSError."""
        self._path = path
        self._sync = sync
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        self.size = os.fstat(self._file).st_size
        """Bytes that are known to be on stable storage."""
        self._inode = os.fstat(self._file).st_ino
        self._unfinished = False
        self._stale = 0
        """Number of stale-handle errors although the path led to the file."""

    def add(self, data: bytes) -> None:
        """Write ``data`` at the end and wait until it is on stable storage.

        Raises:
            OSError: an unknown part of the data was written. Add it again, or cut it off.
            StorageError: another process modified the file; nothing was written.
        """
        try:
            self._add(data)
        except OSError as error:
            # EBADF: a restarted server could not restore the handle for this client.
            bad = error.errno == errno.EBADF
            if not (bad or error.errno == errno.ESTALE) or not self._reopen(at_once=bad):
                raise
            self._add(data)
        self._stale = 0

    def _add(self, data: bytes) -> None:
        self.cut()
        self._check()
        self._unfinished = True
        if os.pwrite(self._file, data, self.size) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._sync(self._file)
        self._unfinished = False
        self.size += len(data)

    def _check(self) -> None:
        """Require that no other process has written or removed the file."""
        try:
            now = os.fstat(self._file)
        except OSError:
            return  # On NFS, fstat may fail on a handle that was stale while writes succeed.
        if now.st_nlink == 0:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        if now.st_size != self.size:
            raise self._changed(now.st_size)

    def _reopen(self, *, at_once: bool) -> bool:
        """Open the file at the path again if the handle is unusable; return whether it was opened.

        A handle becomes usable again when its withdrawn export returns. Until then it is better
        kept: Linux 6.1 hangs when the older of two handles is closed.
        """
        if os.stat(self._path).st_ino == self._inode and not at_once:
            self._stale += 1
            if self._stale < MOST_STALE:
                return False
        fresh = os.open(self._path, os.O_WRONLY)
        self.close()
        now = os.fstat(fresh)
        self._file = fresh
        self._inode = now.st_ino
        self._stale = 0
        if now.st_size < self.size:
            raise self._changed(now.st_size)
        return True

    def _changed(self, size: int) -> StorageError:
        return StorageError(
            f"{self._path} has {size} bytes, but its only writer wrote {self.size}: another "
            "process has changed it, or the file server has lost data"
        )

    def cut(self) -> None:
        """Truncate a failed addition. Raises OSError."""
        if self._unfinished:
            os.ftruncate(self._file, self.size)
            self._unfinished = False

    def close(self) -> None:
        """Close the file."""
        # On NFS, closing reports the failed write again; the handle is closed anyway.
        with suppress(OSError):
            os.close(self._file)


def _failed(verb: str, what: str, error: OSError) -> StorageError:
    return StorageError(f"cannot {verb} {what}: {reason_of(error)}")


def nearest_existing(folder: Path) -> Path:
    """Return ``folder`` or its nearest existing parent, as an absolute path."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if os.path.lexists(path))


def require_writable(
    folder: Path, what: str = "the run directory", option: str = "--run-dir"
) -> None:
    """Check that ``folder`` is writable by creating and removing a folder with a file in it.

    Only an attempt shows whether a file system is read-only, has a quota, or does not support new
    folders, like ``/proc``.

    Args:
        folder: folder to check; its nearest existing parent is tested if it does not exist.
        what: name of the folder in messages.
        option: command-line option that selects another folder.

    Raises:
        RunDirectoryError: the folder is not writable; the message states the reason.
    """

    def refused(reason: str) -> RunDirectoryError:
        return RunDirectoryError(
            f"cannot write {what} {folder}: {reason}; name another one with {option}"
        )

    place = nearest_existing(folder)
    if not place.is_dir():
        kind = f"a link to {os.readlink(place)}" if place.is_symlink() else "a file"
        missing = ", which does not exist" if place.is_symlink() and not place.exists() else ""
        raise refused(f"{place} is {kind}{missing}")
    try:
        with (
            tempfile.TemporaryDirectory(prefix=".aiperf-", dir=place) as made,
            (Path(made) / "file").open("wb") as file,
        ):
            file.write(b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise refused(f"cannot create files in {place}: {error.strerror}") from None


def free_bytes(folder: Path) -> int:
    """Return the free bytes of the file system of ``folder`` or its nearest existing parent."""
    return shutil.disk_usage(nearest_existing(folder)).free
