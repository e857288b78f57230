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
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.errors import RunDirectoryError, StorageError, reason_of

T = TypeVar("T")

PASSING = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EREMOTEIO}
)
"""What a full disk, a quota, or a file server that restarts answers; it may pass."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0
PROMPT_SECONDS = 5.0
"""Seconds after which a call waits for storage: on a hard NFS mount it never fails, but hangs."""


class Retry(Protocol):
    """Carries out an action on storage."""

    def __call__(self, action: Callable[[], T], what: str, verb: str = "write") -> T:
        """Do ``action``; errors say what it could not do. Raises StorageError when it fails."""
        ...


def no_retry(action: Callable[[], T], what: str, verb: str = "write") -> T:
    """Do ``action``, once."""
    try:
        return action()
    except OSError as error:
        raise _failed(verb, what, error) from None


@dataclass(frozen=True, slots=True)
class Wait:
    """A time in which storage was waited for."""

    began_utc: float
    seconds: float
    why: str
    """What could not be done, and what storage answered."""


@dataclass(slots=True, eq=False)
class _Call:
    """A call that is under way."""

    since: float
    """The time from which on it counts as waiting, monotonic seconds."""
    why: str


class BackoffRetry:
    """Repeats an action while its error may pass, until it is done or waiting is pointless.

    Threads may share it.
    """

    def __init__(
        self,
        give_up: Callable[[], bool],
        *,
        clock: Clock = SYSTEM,
    ) -> None:
        """Make it.

        Args:
            give_up: asked before each pause; True ends the waiting.
            clock: what it pauses by.
        """
        self._give_up = give_up
        self._clock = clock
        self._lock = threading.Lock()
        self._waited = 0.0
        """The seconds of all waits that are over."""
        self._calls: list[_Call] = []
        """The calls that are under way."""
        self._began = math.inf
        self._why = ""
        """What is waited for, and in ``_began`` since when, as calls that are done found."""
        self._over: list[Wait] = []

    @property
    def waited(self) -> float:
        """Seconds in which someone waited so far: after a failure, or for long in one call."""
        now = self.waiting
        return self._waited + (0.0 if now is None else now.seconds)

    @property
    def waiting(self) -> Wait | None:
        """What is waited for now, and for how long already; None when nobody waits."""
        with self._lock:
            now = self._clock.monotonic()
            oldest = min(self._calls, key=lambda call: call.since, default=None)
            if oldest is None or oldest.since > now:
                return None
            seconds = now - min(oldest.since, self._began)
            return Wait(self._clock.utc() - seconds, seconds, oldest.why)

    def take(self) -> list[Wait]:
        """Return the waits that are over and were not taken before."""
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
                    if error.errno not in PASSING or self._give_up():
                        raise _failed(verb, what, error) from None
                    self._failed(call, str(_failed(verb, what, error)))
                self._clock.wait(pause, self._give_up)
                pause = min(2 * pause, LONGEST_PAUSE)

    @contextmanager
    def _under_way(self, why: str) -> Iterator[_Call]:
        call = _Call(self._clock.monotonic() + PROMPT_SECONDS, why)
        with self._lock:
            self._calls.append(call)
        try:
            yield call
        finally:
            with self._lock:
                self._calls.remove(call)
                self._end(call)

    def _failed(self, call: _Call, why: str) -> None:
        with self._lock:
            call.since = min(call.since, self._clock.monotonic())
            call.why = why

    def _end(self, call: _Call) -> None:
        """Note the wait that ends with a call, unless others still wait."""
        now = self._clock.monotonic()
        if call.since >= now:
            return
        if call.since < self._began:
            self._began = call.since
            self._why = call.why
        if all(other.since >= now for other in self._calls):
            seconds = now - self._began
            self._over.append(Wait(self._clock.utc() - seconds, seconds, self._why))
            self._waited += seconds
            self._began = math.inf


Sync = Callable[[int], None]
"""What brings what was written to an open file to stable storage."""


def to_stable_storage(file: int) -> None:
    """Wait until what was written to an open file outlives a power cut."""
    os.fsync(file)


MOST_STALE = 3
"""How often a handle may be stale although its name leads to its file, before it is given up."""


class GrowingFile:
    """A file that its one writer extends, each time to stable storage.

    It writes at the place that it knows, never at the end that a file server names: after an
    error that is too far away, and zeros would fill the gap. So an addition that failed can be
    made again, as often as needed, and is there once.
    """

    def __init__(self, path: Path, sync: Sync = to_stable_storage) -> None:
        """Open the file, or make it. Raises OSError."""
        self._path = path
        self._sync = sync
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        self.size = os.fstat(self._file).st_size
        """Bytes that are surely there."""
        self._inode = os.fstat(self._file).st_ino
        self._unfinished = False
        self._stale = 0
        """How often its handle was stale although its name led to it."""

    def add(self, data: bytes) -> None:
        """Write ``data`` at the end and wait until it is on stable storage.

        Raises:
            OSError: it is not known how much of it is there. Add it again, or cut it off.
            StorageError: the file is not as this writer left it; nothing was written.
        """
        try:
            self._add(data)
        except OSError as error:
            # EBADF: a server that restarted could not give the handle back to this client.
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
        """Require that nobody else has written, nor removed the file."""
        try:
            now = os.fstat(self._file)
        except OSError:
            return  # On NFS a handle that was stale for a while can be written, but not asked.
        if now.st_nlink == 0:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        if now.st_size != self.size:
            raise self._changed(now.st_size)

    def _reopen(self, *, at_once: bool) -> bool:
        """Open the file that the name leads to, if the handle is no good; return whether.

        A handle whose export is taken back and offered again is good again. Until then it is
        better kept: with two handles, Linux 6.1 hangs when it closes the older one.
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
            f"{self._path} has {size} bytes where its only writer left {self.size}: "
            "something else has written it, or its file server has lost data"
        )

    def cut(self) -> None:
        """Cut off what failed to be added. Raises OSError."""
        if self._unfinished:
            os.ftruncate(self._file, self.size)
            self._unfinished = False

    def close(self) -> None:
        """Close the file."""
        # On NFS closing reports the failed write once more; the handle is closed all the same.
        with suppress(OSError):
            os.close(self._file)


def _failed(verb: str, what: str, error: OSError) -> StorageError:
    return StorageError(f"cannot {verb} {what}: {reason_of(error)}")


def nearest_existing(folder: Path) -> Path:
    """Return ``folder``, or the nearest of its parents that is there, as an absolute path."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if os.path.lexists(path))


def require_writable(
    folder: Path, what: str = "the run directory", option: str = "--run-dir"
) -> None:
    """Make a folder with a file in it where ``folder`` is or would be, and remove both.

    Only trying says whether a file system is mounted for reading, has a quota, or makes no folders
    at all, as ``/proc``.

    Args:
        folder: what is to be written.
        what: what it is to the user.
        option: by which the user may name another one.

    Raises:
        RunDirectoryError: it cannot be done; the message says why.
    """

    def refused(why: str) -> RunDirectoryError:
        return RunDirectoryError(
            f"cannot write {what} {folder}: {why}; name another one with {option}"
        )

    place = nearest_existing(folder)
    if not place.is_dir():
        kind = f"a link to {os.readlink(place)}" if place.is_symlink() else "a file"
        missing = ", which is not there" if place.is_symlink() and not place.exists() else ""
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
        raise refused(f"nothing can be made in {place}: {error.strerror}") from None


def free_bytes(folder: Path) -> int:
    """Return the bytes that may still be written at ``folder`` or its nearest parent."""
    return shutil.disk_usage(nearest_existing(folder)).free
