"""Processes and threads: identity, child processes, background work, signals that end a program."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import psutil

from aiperf_hpc.errors import EndedEarlyError, UsageError
from aiperf_hpc.trial import Value

DEAD = "ZX"
"""States of an exited process in ``/proc/PID/stat``."""


class ProcessId(Value):
    """Unique identity of a process, even if its PID is reused."""

    machine: str
    """Boot and PID namespace, equal for processes that see each other's PIDs."""
    pid: int
    started: int
    """Start time in ticks since boot, which does not change if the clock is set."""

    @property
    def gone(self) -> bool | None:
        """Whether the process has exited, or None if it is not visible from this machine."""
        if self.machine != this_machine():
            return None
        return _started(self.pid) != self.started


def this_process() -> ProcessId:
    """Return the identity of the calling process."""
    pid = os.getpid()
    started = _started(pid)
    assert started is not None  # noqa: S101 -- it is running
    return ProcessId(machine=this_machine(), pid=pid, started=started)


def this_machine() -> str:
    """Return a name for this boot and PID namespace, without spaces or dashes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:  # Missing in some sandboxes.
        boot = socket.gethostname()
    return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino:x}".replace("-", "")


def arguments_of(pid: int) -> list[str]:
    """Return a process's command line, or an empty list if there is no such process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def runs_aiperf(pid: int) -> bool:
    """Return whether a process's command line contains "aiperf"."""
    return any("aiperf" in argument for argument in arguments_of(pid))


def _started(pid: int) -> int | None:
    """Return a process's start time in ticks since boot, or None if it has exited."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except OSError:
        return None
    # The program's name is in parentheses and may contain any character.
    fields = line.rpartition(")")[2].split()
    return None if fields[0] in DEAD else int(fields[19])


PATIENCE_SECONDS = 10.0
"""Seconds to wait for killed processes; one that waits for storage may exit much later."""
SPEAKER = "aiperf: "
"""Prefix of the messages of this package's programs, which libraries' messages lack."""


def run_in_session(
    command: Sequence[str],
    seconds: float | None = None,
    given: str | None = None,
    *,
    late: str = "it did not end within {:g} s",
    what: str = "it",
    failed: str = "",
) -> str:
    """Run a program of this package in its own session; return its output.

    All processes of the session are killed when it ends.

    Args:
        command: program with its arguments.
        seconds: time limit in seconds.
        given: standard input of the command; that of this process by default.
        late: message of the error, with a place for the seconds.
        what: name of the program, for the reason of a failure.
        failed: text before that reason.

    Raises:
        UsageError: the command exceeded the time limit, or failed.
    """
    with subprocess.Popen(
        command,
        stdin=None if given is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="locale",
        errors="backslashreplace",
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(given, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise UsageError(late.format(seconds)) from None
        finally:
            end_session(process.pid)
    if process.returncode:
        raise UsageError(f"{failed}{_failure_reason(process.returncode, err, what)}")
    return out


def _failure_reason(status: int, output: str, what: str) -> str:
    """Return why a program of this package failed: its last message, or else its exit status."""
    if status < 0:
        ended_by = signal.Signals(-status)
        hint = "; the kernel does so when memory is exhausted" if ended_by is signal.SIGKILL else ""
        return f"{what} was ended by {ended_by.name}{hint}"
    lines = output.strip().splitlines()
    said = [line for line in lines if line.startswith(SPEAKER)] or lines
    return said[-1].removeprefix(SPEAKER) if said else f"{what} ended with status {status}"


def end_session(session: int) -> None:
    """Kill every process of a session; ranks and search workers may have their own process groups.

    Processes that do not exit in time are left running; fencing blocks their further records.

    Args:
        session: session ID, the PID of the session leader, which may have exited.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    while (processes := _alive(session)) and time.monotonic() < until:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):  # It exited by itself.
                process.kill()
        time.sleep(0.01)  # The next iteration finds processes started meanwhile.


def _alive(session: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            there = process.status() != psutil.STATUS_ZOMBIE
            if there and os.getsid(process.pid) == session:
                found.append(process)
    return found


@contextmanager
def in_background(
    work: Callable[[threading.Event], object], name: str, patience: float | None = None
) -> Iterator[None]:
    """Run ``work`` in a daemon thread while the block runs.

    Args:
        work: called with an event that is set when the block ends; it must return soon after.
        name: name of the thread.
        patience: maximum seconds to wait for the thread at the end of the block; unlimited by
            default.
    """
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(patience)


Handler = Callable[[int, FrameType | None], None]


class Interruption(KeyboardInterrupt):
    """A signal requested the end of this process."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


class Interrupts:
    """Number of the user's requests to stop: the first is graceful, the second immediate.

    The signal handler only counts, because it may run between any two instructions of a thread that
    prints or holds a lock.
    """

    def __init__(self) -> None:
        self.count = 0
        self.how = ""
        """The last request in words, such as Ctrl-C."""

    def received(self, number: int, _: FrameType | None) -> None:
        """Count a signal."""
        self.how = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        self.count += 1

    def at_once(self) -> bool:
        """Return whether to stop immediately."""
        return self.count > 1


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that request the end of a process, without SIGHUP under ``nohup``."""
    deaf = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *(() if deaf else (signal.SIGHUP,)))


@contextmanager
def ending_early(message: Callable[[], str]) -> Iterator[None]:
    """Raise an Interruption of the block as an EndedEarlyError with the message."""
    try:
        yield
    except Interruption as interruption:
        raise EndedEarlyError(message(), interruption.exit_status) from None


@contextmanager
def interruptible(*, exits: bool = False) -> Iterator[None]:
    """Raise an Interruption in the block on the first signal; ignore further signals.

    Args:
        exits: whether the process exits after an interruption. Signals are then ignored until its
            end, because a Ctrl-C forwarded by ``run_to_its_end`` may arrive a second time, late.
    """
    numbers = ending_signals()
    interrupted = False

    def ended(number: int, _: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        for each in numbers:
            signal.signal(each, _ignored)
        raise Interruption(number)

    before = [signal.signal(number, ended) for number in numbers]
    try:
        # The parent process may have blocked the signals until now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
        yield
    finally:
        if not (exits and interrupted):
            _restore(numbers, before)


def run_to_its_end(command: Sequence[str], output: TextIO | None = None) -> int:
    """Run a command whose process is ``interruptible``; return its status as a shell would.

    Signals to this process are forwarded to the command. (It also receives a terminal's Ctrl-C
    directly and ignores the second one.) Signals are blocked until it can shut down gracefully.

    Args:
        command: program with its arguments.
        output: standard output of the command; that of this process by default.
    """
    with ExitStack() as stack:
        with withheld():
            process = stack.enter_context(subprocess.Popen(command, stdout=output))
            forward = handled(ending_signals(), lambda number, _: process.send_signal(number))
            stack.enter_context(forward)
        status = process.wait()
    return status if status >= 0 else 128 - status


@contextmanager
def withheld() -> Iterator[None]:
    """Block the signals that request the end; processes started in the block inherit that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ending_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def handled(numbers: Sequence[signal.Signals], handler: Handler) -> Iterator[None]:
    """Install a handler for the signals during the block."""
    before = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        _restore(numbers, before)


def _restore(numbers: Sequence[signal.Signals], handlers: Sequence[Any]) -> None:
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


def _ignored(_: int, __: FrameType | None) -> None:
    """Ignore a signal. Not SIG_IGN, because child processes would inherit that."""
