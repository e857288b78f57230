"""Work that threads share, and that can be broken off."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


def in_threads(
    work: Callable[[Job, threading.Event], Result], jobs: Iterable[Job], threads: int
) -> Iterator[Result]:
    """Do jobs by threads and yield their results in the jobs' order.

    Args:
        work: is given a job, and an event that is set when nobody waits for its result any more:
            because another job failed, or the iterator was closed. It may then return anything.

    Raises:
        Exception: the first that a job raised, by the order of the jobs.
    """
    stopped = threading.Event()
    with ThreadPoolExecutor(max(1, threads)) as pool:
        results = [pool.submit(work, job, stopped) for job in jobs]
        try:
            for result in results:
                yield result.result()
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)
