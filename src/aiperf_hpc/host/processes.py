"""Which process a number means: the one that was recorded, or one that got the number later."""

from __future__ import annotations

import os
import socket
from pathlib import Path

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
