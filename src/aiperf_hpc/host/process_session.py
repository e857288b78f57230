"""Processes in a session of their own: those of a local replica, and of a measurement."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence

import psutil

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
