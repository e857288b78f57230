"""Processes and threads: identifying a process, sessions of child processes, background work."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from aiperf_hpc.trial import Value

DEAD = "ZX"
"""The states, in ``/proc/PID/stat``, of a process that runs no more."""


class ProcessId(Value):
    """One process, told from all others that have or had its number."""

    machine: str
    """Equal for processes that see each other's numbers: one boot, one namespace of numbers."""
    pid: int
    started: int
    """When, in ticks since the boot. Not a time of day, which changes when a clock is set."""

    @property
    def gone(self) -> bool | None:
        """Whether it has ended; None where that cannot be seen from here."""
        if self.machine != this_machine():
            return None
        return _started(self.pid) != self.started


def this_process() -> ProcessId:
    """Return the process that asks."""
    pid = os.getpid()
    started = _started(pid)
    assert started is not None  # noqa: S101 -- it is running
    return ProcessId(machine=this_machine(), pid=pid, started=started)


def this_machine() -> str:
    """Return a name for all processes that see each other's numbers, without spaces or dashes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:  # A sandbox need not have it.
        boot = socket.gethostname()
    return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino:x}".replace("-", "")


def arguments_of(pid: int) -> list[str]:
    """Return a process's command line; nothing when there is no such process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def runs_aiperf(pid: int) -> bool:
    """Return whether a process has to do with this package, by its command line."""
    return any("aiperf" in argument for argument in arguments_of(pid))


def _started(pid: int) -> int | None:
    """Return when a process started, in ticks since the boot; None if it runs no more."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except OSError:
        return None
    # The program's name is in parentheses and may have any character.
    fields = line.rpartition(")")[2].split()
    return None if fields[0] in DEAD else int(fields[19])


PATIENCE_SECONDS = 10.0
"""How long to wait for killed processes: one that waits for storage may end much later."""
SPEAKER = "aiperf: "
"""How a line begins that our programs write for people; what libraries write does not."""


def run_in_session(
    command: Sequence[str], seconds: float | None = None, given: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command with all that it starts; nothing of it is left when this returns or raises.

    Args:
        command: the program with its arguments.
        seconds: the most that it may take.
        given: what it reads from standard input; this process's own when not given.

    Raises:
        subprocess.TimeoutExpired: it took longer than ``seconds``.
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
        finally:
            end_session(process.pid)
        return subprocess.CompletedProcess(list(command), process.returncode, out, err)


def failure_reason(done: subprocess.CompletedProcess[str], what: str = "it") -> str:
    """Return why a program of this package failed: what it said last, else how ``what`` ended."""
    if done.returncode < 0:
        ended_by = signal.Signals(-done.returncode)
        hint = "; the kernel does so where memory ends" if ended_by is signal.SIGKILL else ""
        return f"{what} was ended by {ended_by.name}{hint}"
    lines = done.stderr.strip().splitlines()
    said = [line for line in lines if line.startswith(SPEAKER)] or lines
    return said[-1].removeprefix(SPEAKER) if said else f"{what} ended with status {done.returncode}"


def end_session(session: int) -> None:
    """Kill every process of a session: ranks and search workers may be in groups of their own.

    What does not end in time is left: what it may still record is fenced.

    Args:
        session: its number, that of the process which leads it, whether that is there or not.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    while (processes := _alive(session)) and time.monotonic() < until:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):  # Ended by itself.
                process.kill()
        time.sleep(0.01)  # What was just being started is found by the next look.


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
        work: called with an event that is set when the block ends; it returns soon after.
        name: the thread's name.
        patience: how many seconds the end of the block waits for it; until it ends when not given.
    """
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(patience)
