"""Processes as tests look at them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator

import psutil


def alive(pid: int) -> bool:
    """Return whether a process does anything: a killed one is there until its parent has asked."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


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
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
