"""Who has a run in hand: one process at a time, decided by the file server and not by looking.

Whoever is to write what a primary writes first takes the next number in ``primary/claims``: a file
that says who it is, made under another name and then linked, which of many clients of a file
server succeeds for one. The number after a claim may be taken once its holder is known to be gone,
so that the newest claim says who has the run.
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
"""What file systems without hard links answer."""


class ClaimedError(UsageError):
    """Another process has the run in hand."""


class LostClaimError(AIPerfError):
    """Another process took the run in hand while this one was silent."""


class Holder(Value):
    """Who took a run in hand."""

    v: Literal[1] = 1
    command: str
    """The command of ``aiperf``: start, conduct, resume or stop."""
    host: str
    process: ProcessId
    utc: float
    """The time at which it took the run in hand, UTC seconds."""
    released: bool = False
    """Whether it has let go of the run: it writes no more."""
    token: str = ""
    """What tells this claim from any other."""

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.utc))
        where = f"process {self.process.pid} on {self.host} since {since}"
        if self.command == "stop":
            return f"`aiperf stop` is ending it, as {where}"
        return f"its primary is running, as {where}"


class Claim:
    """This process's hold on a run, until the block that uses it ends."""

    def __init__(self, folder: Path, number: int, command: str, silence: float) -> None:
        """Hold what was taken; use ``take``.

        Args:
            folder: of all claims.
            number: of this one.
            command: what for.
            silence: seconds without a record after which others may take it for gone.
        """
        self.number = number
        self._folder = folder
        self._command = command
        self._silence = silence
        self._spoke = _now()
        self._next: Holder | None = None
        """What was or may have been written as the next claim."""
        self._released = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def release(self) -> None:
        """Let go of the run. Once more changes nothing."""
        if self._released:
            return
        self._released = True
        # Where it cannot be written, others see that this process is gone, or wait until it has
        # been silent for long enough.
        with suppress(OSError):
            released = _holder(self._command).model_copy(update={"released": True})
            write_whole(_file(self._folder, self.number), released.model_dump_json())

    def recorded(self, utc: float, mono: float) -> None:
        """Note a record by which others see that this process is alive, and its time.

        By its own time, not by when it was stored: others judge by what it says, and a write that
        hung for long is no sign of life.
        """
        self._spoke = max(utc, self._spoke[0]), max(mono, self._spoke[1])

    def confirm(self) -> None:
        """Require that the run is still this process's, after a silence as after a cut link.

        It takes the next number too: if that has been taken, it was by someone else.

        Raises:
            LostClaimError: another process has taken the run in hand.
            OSError: that cannot be found out now.
        """
        quiet = max(now - then for now, then in zip(_now(), self._spoke, strict=True))
        if quiet < self._silence:
            return
        self._next = self._next or _holder(self._command)
        if not _publish(self._folder, self.number + 1, self._next):
            holder = _read(self._folder, self.number + 1)
            raise LostClaimError(
                f"process {holder.process.pid} on {holder.host} has taken the run in hand, since "
                "this primary had been silent for too long; this one ends"
            )
        self.number += 1
        self._next = None
        self._spoke = _now()


class Claimed:
    """Writes for as long as a claim holds."""

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
    """Take a run in hand.

    Args:
        history: its records, which are read once nobody else writes any.
        heartbeat_seconds: how often its primary says that it is alive.
        command: what of ``aiperf`` takes it.
        retry: how to write; a BackoffRetry waits while the storage is full or away.

    Raises:
        ClaimedError: another process has it. Nothing was changed.
        RunDirectoryError: its file system cannot say who has it.
        JournalError: its records cannot be read.
    """
    folder = history.paths.claims
    history.refresh()
    number = check_free(history, heartbeat_seconds)
    while True:
        number += 1
        publish = partial(_publish, folder, number, _holder(command))
        if retry(publish, f"a claim in {folder}"):
            claim = Claim(folder, number, command, own_limit(heartbeat_seconds))
            try:
                history.refresh()  # Who had it may have written, and let go of it, meanwhile.
            except BaseException:
                claim.release()
                raise
            return claim
        _check_gone(_read(folder, number), history, heartbeat_seconds)


def holder_is_gone(folder: Path) -> bool | None:
    """Return whether no other process can have a run in hand any more.

    The last one has ended, or it is this one, or there never was any. None where that cannot be
    seen from here.

    Raises:
        RunDirectoryError, OSError: its claim cannot be read.
    """
    number = _newest(folder)
    process = _read(folder, number).process if number else this_process()
    return process == this_process() or process.gone


def check_free(history: RunHistory, heartbeat_seconds: float) -> int:
    """Require that nobody is known to have a run; return the newest claim's number, 0 if none.

    Raises:
        ClaimedError: someone has it.
    """
    number = _newest(history.paths.claims)
    if number:
        _check_gone(_read(history.paths.claims, number), history, heartbeat_seconds)
    elif history.run_starts:
        _check_last_start(history, heartbeat_seconds)
    return number


def _check_gone(holder: Holder, history: RunHistory, heartbeat_seconds: float) -> None:
    gone = holder.released or holder.process.gone
    if gone is None:
        _check_silent(str(holder), holder.utc, history, heartbeat_seconds)
    elif not gone:
        raise ClaimedError(f"{history.paths.root}: {holder}")


def _check_silent(who: str, since: float, history: RunHistory, heartbeat_seconds: float) -> None:
    quiet = time.time() - max(since, history.primary_utc or 0.0)
    patience = gone_limit(heartbeat_seconds)
    if quiet < patience:
        raise ClaimedError(
            f"{history.paths.root}: {who}; it wrote {quiet:.0f} s ago, and is taken for alive "
            f"until it has been silent for {patience:.0f} s"
        )


def _check_last_start(history: RunHistory, heartbeat_seconds: float) -> None:
    """Require that the primary of a run from before there were claims is gone."""
    since, last = history.run_starts[-1]
    who = f"its primary is running, as process {last.pid} on {last.host}"
    gone = primary_is_gone(last)
    if gone is None:
        _check_silent(who, since, history, heartbeat_seconds)
    elif not gone:
        raise ClaimedError(f"{history.paths.root}: {who}")


def _holder(command: str) -> Holder:
    return Holder(
        command=command,
        host=socket.gethostname(),
        process=this_process(),
        utc=time.time(),
        token=secrets.token_hex(8),
    )


def _now() -> tuple[float, float]:
    """Return the time by two clocks: one is set now and then, the other rests with the machine."""
    return time.time(), time.monotonic()


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number:04d}.json"


def _newest(folder: Path) -> int:
    """Return the highest number that is to be seen; a higher one may not be yet."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return 0
    numbers = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def _publish(folder: Path, number: int, holder: Holder) -> bool:
    """Make the claim of this number; return whether it is ours. Raises OSError."""
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
            # A file server that restarts may be told twice, and refuse the second time.
            return _read(folder, number).token == holder.token
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            raise RunDirectoryError(
                f"the file system of {folder} has no hard links ({error.strerror}), by which a "
                "run has one primary at a time; name a folder elsewhere with --run-dir"
            ) from None
        return True
    finally:
        with suppress(OSError):  # What was linked is linked all the same.
            temporary.unlink()


def _read(folder: Path, number: int) -> Holder:
    """Read a claim that is there, although it may not be visible yet.

    Raises:
        RunDirectoryError: it is damaged.
        OSError: it cannot be read.
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
                f"{path} is damaged: who has the run is not known; remove it if nobody has"
            ) from None
        time.sleep(LOOK_SECONDS)
