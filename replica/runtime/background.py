"""Background jobs of a replica during training: one after the other, at low priority."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

NICENESS = 10
"""Niceness of background jobs."""


def background_thread() -> ThreadPoolExecutor:
    """Return an executor with one low-priority thread; all jobs have ended after its block."""
    return ThreadPoolExecutor(1, "background", lower_priority)


def lower_priority() -> None:
    """Lower the priority of the calling thread; Linux has a niceness per thread."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
