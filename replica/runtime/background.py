"""Background jobs of a replica during training: one after the other, at low priority."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager

NICENESS = 10
"""Niceness of background jobs."""


@contextmanager
def background_thread() -> Iterator[Executor]:
    """Provide an executor with one low-priority thread; all jobs have ended after the block."""
    with ThreadPoolExecutor(1, "background", lower_priority) as executor:
        yield executor


def lower_priority() -> None:
    """Lower the priority of the calling thread; Linux has a niceness per thread."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
