"""What a replica has done beside its training: one job after the other, at low priority."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

NICENESS = 10
"""The niceness of all that a replica does beside its training."""

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def background_thread() -> Iterator[Executor]:
    """Give a thread that does jobs in the order they come in; after the block all have ended."""
    with ThreadPoolExecutor(1, "background", lower_priority) as executor:
        yield executor


def lower_priority() -> None:
    """Let other threads go before the calling one, which on Linux has a priority of its own."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


class Immediate(Executor):
    """Does each job when it is given: nothing goes on beside anything else."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Do it. What it raises, ``result`` raises."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 -- whoever asks for the result gets it
            future.set_exception(error)
        return future


IMMEDIATE = Immediate()
