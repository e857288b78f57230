"""Claims: exclusive control of a run by one process, decided atomically by the file server.

Before a process writes the primary's files, it claims the next number in ``primary/claims``. The
claim is a file that identifies the process, created under a temporary name and then hard-linked,
which succeeds for only one client of a file server. The next number may be claimed only after the
holder is known to have exited, so the newest claim identifies the process that controls the run.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal, Self, TypeVar

from pydantic import ValidationError

from aiperf_hpc.errors import AIPerfError, RunDirectoryError, UsageError
from aiperf_hpc.host.processes import ProcessId, this_process
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.liveness import LAG_SECONDS, gone_limit, own_limit, primary_is_gone
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.run.storage import Retry, no_retry, to_stable_storage
from aiperf_hpc.trial import Value

T = TypeVar("T")

LOOK_SECONDS = 0.5
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of file systems without hard links."""


class ClaimedError(UsageError):
    """Another process controls the run."""


class LostClaimError(AIPerfError):
    """Another process took control of the run while this one recorded no heartbeat."""


class Holder(Value):
    """Identity of a process that claimed a run, or a folder of runs."""

    v: Literal[1] = 1
    command: str
    """Command of ``aiperf``: start, conduct, resume or stop; serve for a folder."""
    host: str
    process: ProcessId
    utc: float
    """Time of the claim, UTC seconds."""
    released: bool = False
    """Whether the process has released the run and writes no more records."""
    token: str = ""
    """Unique identifier of the claim."""

    @property
    def where(self) -> str:
        """Process, host and time of the claim, as text."""
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.utc))
        return f"process {self.process.pid} on {self.host} since {since}"

    def __str__(self) -> str:
        if self.command == "stop":
            return f"`aiperf stop` is ending it, as {self.where}"
        return f"its primary is running, as {self.where}"


class Claim:
    """This process's claim on a run, released at the end of the ``with`` block."""

    def __init__(self, folder: Path, number: int, command: str, silence: float) -> None:
        """Hold an acquired claim; use ``take`` to acquire one.

        Args:
            folder: folder of all claims.
            number: number of this claim.
            command: command of ``aiperf`` that holds it.
            silence: seconds without a record after which others may assume that it has exited.
        """
        self.number = number
        self._folder = folder
        self._command = command
        self._silence = silence
        self._spoke = _now()
        self._next: Holder | None = None
        """Claim that was, or may have been, written with the next number."""
        self._released = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the run. Further calls have no effect."""
        if self._released:
            return
        self._released = True
        # If it cannot be written, others see that this process has exited, or wait until it has
        # been silent for long enough.
        with suppress(OSError):
            released = this_holder(self._command).model_copy(update={"released": True})
            write_whole(_file(self._folder, self.number), released.model_dump_json())

    def recorded(self, utc: float, mono: float) -> None:
        """Note the time of a record that serves as this process's heartbeat.

        This is the record's own timestamp, not the time at which it was stored: others judge by
        the timestamp, and a write that hung for long is no heartbeat.
        """
        self._spoke = max(utc, self._spoke[0]), max(mono, self._spoke[1])

    def confirm(self) -> None:
        """Require that this process still controls the run, e.g. after a network partition.

        It also claims the next number: if that is already claimed, another process did so.

        Raises:
            LostClaimError: another process has claimed the run.
            OSError: the claims cannot be accessed now.
        """
        quiet = max(now - then for now, then in zip(_now(), self._spoke, strict=True))
        if quiet < self._silence:
            return
        self._next = self._next or this_holder(self._command)
        if not _publish(self._folder, self.number + 1, self._next):
            holder = _read(self._folder, self.number + 1)
            raise LostClaimError(
                f"process {holder.process.pid} on {holder.host} has taken control of the "
                "run, because this primary was silent for too long; this primary exits"
            )
        self.number += 1
        self._next = None
        self._spoke = _now()


class Claimed:
    """Retry policy that writes only while the claim is held."""

    def __init__(self, claim: Claim, retry: Retry) -> None:
        self._claim = claim
        self._retry = retry

    def __call__(self, action: Callable[[], T], what: str, verb: str = "write") -> T:
        def claimed() -> T:
            self._claim.confirm()
            return action()

        return self._retry(claimed, what, verb)


def take(
    history: RunHistory,
    heartbeat_seconds: float,
    command: str,
    retry: Retry = no_retry,
) -> Claim:
    """Claim a run.

    Args:
        history: records of the run, which are read when no other process writes any.
        heartbeat_seconds: interval of the primary's heartbeats.
        command: command of ``aiperf`` that claims the run.
        retry: retry policy of writes; a BackoffRetry waits while the storage is full or
            unavailable.

    Raises:
        ClaimedError: another process controls the run. Nothing was changed.
        RunDirectoryError: the file system does not support exclusive claims.
        JournalError: the records cannot be read.
    """
    folder = history.paths.claims
    history.refresh()
    number = check_free(history, heartbeat_seconds)
    while True:
        number += 1
        publish = partial(_publish, folder, number, this_holder(command))
        if retry(publish, f"a claim in {folder}"):
            claim = Claim(folder, number, command, own_limit(heartbeat_seconds))
            try:
                history.refresh()  # The previous holder may have written and released it.
            except BaseException:
                claim.release()
                raise
            return claim
        _check_holder(_read(folder, number), history, heartbeat_seconds)


def holder_is_gone(folder: Path) -> bool | None:
    """Return whether no other process controls a run.

    The last holder has exited, is this process, or never existed. Return None if that cannot be
    determined from this host.

    Raises:
        RunDirectoryError, OSError: the claim cannot be read.
    """
    number = _newest(folder)
    process = _read(folder, number).process if number else this_process()
    return process == this_process() or process.gone


def check_free(history: RunHistory, heartbeat_seconds: float) -> int:
    """Require that no process is known to control a run; return the newest claim's number or 0.

    Raises:
        ClaimedError: another process controls the run.
    """
    number = _newest(history.paths.claims)
    if number:
        _check_holder(_read(history.paths.claims, number), history, heartbeat_seconds)
    elif history.run_starts:  # Of a version without claims.
        since, last = history.run_starts[-1]
        who = f"its primary is running, as process {last.pid} on {last.host}"
        _check_gone(who, since, primary_is_gone(last), history, heartbeat_seconds)
    return number


def _check_holder(holder: Holder, history: RunHistory, heartbeat_seconds: float) -> None:
    gone = holder.released or holder.process.gone
    _check_gone(str(holder), holder.utc, gone, history, heartbeat_seconds)


def _check_gone(
    who: str, since: float, gone: bool | None, history: RunHistory, heartbeat_seconds: float
) -> None:
    """Require that a process has exited or, if that is unknown (None), been silent for long."""
    if gone is None:
        quiet = time.time() - max(since, history.primary_utc or 0.0)
        patience = gone_limit(heartbeat_seconds)
        gone = quiet >= patience
        who += (
            f"; it wrote {quiet:.0f} s ago, and counts as alive "
            f"until it has been silent for {patience:.0f} s"
        )
    if not gone:
        raise ClaimedError(f"{history.paths.root}: {who}")


def this_holder(command: str) -> Holder:
    """Return the identity of this process."""
    return Holder(
        command=command,
        host=socket.gethostname(),
        process=this_process(),
        utc=time.time(),
        token=secrets.token_hex(8),
    )


def _now() -> tuple[float, float]:
    """Return the time of two clocks: one can be adjusted, the other stops while suspended."""
    return time.time(), time.monotonic()


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number:04d}.json"


def _newest(folder: Path) -> int:
    """Return the highest visible number; a higher one may not be visible yet."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return 0
    numbers = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def _publish(folder: Path, number: int, holder: Holder) -> bool:
    """Create the claim of this number; return whether this process holds it. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{number:04d}.{holder.token}"
    try:
        with temporary.open("wb") as file:
            file.write(holder.model_dump_json().encode())
            file.flush()
            to_stable_storage(file.fileno())
        try:
            os.link(temporary, _file(folder, number))
        except FileExistsError:
            # A file server that restarts may get the request twice and reject the second one.
            return _read(folder, number).token == holder.token
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            raise RunDirectoryError(
                f"the file system of {folder} has no hard links ({error.strerror}), which ensure "
                "that a run has one primary; choose another file system with --run-dir"
            ) from None
        return True
    finally:
        with suppress(OSError):  # The link exists nevertheless.
            temporary.unlink()


def _read(folder: Path, number: int) -> Holder:
    """Read an existing claim, which may not be visible yet.

    Raises:
        RunDirectoryError: the claim is damaged.
        OSError: the claim cannot be read.
    """
    path = _file(folder, number)
    until = time.monotonic() + LAG_SECONDS
    while True:
        try:
            return Holder.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            if time.monotonic() > until:
                raise
        except ValidationError:
            raise RunDirectoryError(
                f"{path} is damaged: the owner of the run is unknown; remove it if no process "
                "controls the run"
            ) from None
        time.sleep(LOOK_SECONDS)
