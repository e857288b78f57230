"""Processes as tests look at them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

MAY_HAVE_ENDED = contextlib.suppress(ProcessLookupError)
"""For signals to processes that may have ended meanwhile."""


def alive(pid: int) -> bool:
    """Return whether a process does anything: a killed one is there until its parent has asked."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def visible() -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the number, command line and environment of each other process.

    The environment is empty if it cannot be read: the process is another user's or is ending.
    """
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            try:
                command = (path / "cmdline").read_bytes()
            except OSError:  # It has ended.
                continue
            try:
                environment = (path / "environ").read_bytes()
            except OSError:
                environment = b""
            yield int(path.name), command, environment


def kill(processes: Iterable[int], number: signal.Signals = signal.SIGKILL) -> int:
    """Send a signal to processes; return the number of those that had not ended."""
    sent = 0
    for pid in processes:
        with MAY_HAVE_ENDED:
            os.kill(pid, number)
            sent += 1
    return sent


@contextlib.contextmanager
def in_a_group(*command: object) -> Iterator[subprocess.Popen[str]]:
    """Start a command in a group of its own, as a shell does; leave nothing of the group."""
    with subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            with MAY_HAVE_ENDED:
                os.killpg(process.pid, signal.SIGKILL)
