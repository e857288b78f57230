"""Work that a process of its own does beside this one, on values that this one has read."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def beside(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Do something in a fork of this process while the block runs, where there is a core for it.

    Yields:
        What waits for the result. Where this process has threads, which a fork would lose, where it
        has one core, or where the fork ended without a result, it does the work itself.
    """
    if threading.active_count() > 1 or len(os.sched_getaffinity(0)) == 1:
        yield work
        return
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)
    process = fork.Process(target=_answer, args=(work, there), daemon=True)
    process.start()
    there.close()

    def result() -> T:
        with suppress(EOFError, OSError):
            found: T = here.recv()
            return found
        return work()

    try:
        yield result
    finally:
        here.close()
        process.kill()
        process.join()


def _answer(work: Callable[[], object], answer: Connection) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    try:
        answer.send(work())
    except Exception:  # noqa: BLE001 -- who asked does the work itself, and says what is wrong
        os._exit(1)
