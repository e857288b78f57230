"""The processes of a local replica: the launcher starts each replica in a session of its own."""

from __future__ import annotations

import contextlib
import os
import time

import psutil

PATIENCE_SECONDS = 10.0
"""How long to wait for killed processes: one that waits for storage may end much later."""


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
