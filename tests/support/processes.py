"""Processes as tests look at them."""

from __future__ import annotations

import psutil


def alive(pid: int) -> bool:
    """Return whether a process does anything: a killed one is there until its parent has asked."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
