"""Background jobs of a replica during training: one after the other, at low priority."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

NICENESS = 10
"""Niceness of background jobs."""

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def background_thread() -> Iterator[Executor]:
    """Provide an executor with one low-priority thread; all jobs have ended after the block."""
    with ThreadPoolExecutor(1, "background", lower_priority) as executor:
        yield executor


def lower_priority() -> None:
    """Lower the priority of the calling thread; Linux has a niceness per thread."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


class Immediate(Executor):
    """Executor that runs each job immediately in the calling thread."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run the job; ``result`` raises its error."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 -- whoever asks for the result gets it
            future.set_exception(error)
        return future


IMMEDIATE = Immediate()
