"""Progress of long operations, and execution of jobs in threads with progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

EVERY_SECONDS = 1.0
"""Minimum time between two progress reports."""
Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a long operation."""

    what: str
    """Participle for display, such as "verifying"."""
    done: int
    total: int
    unit: str
    """Plural noun for the counted units."""
    per_second: float | None = None
    """Units per second, or None if not yet known."""


ShowProgress = Callable[[Progress], None]


def not_shown(progress: Progress) -> None:
    """Show nothing."""


@dataclass(eq=False)
class Meter:
    """Counts units and reports progress at most once per second. Threads may share it."""

    show: ShowProgress
    what: str
    total: int
    unit: str
    finished: int = 0
    """Units that an earlier process finished, which are not included in the speed."""

    def __post_init__(self) -> None:
        self._done = self.finished
        self._began = self._next = time.monotonic()
        self._lock = threading.Lock()

    def add(self, number: int = 1) -> None:
        """Count further units."""
        with self._lock:
            self._done += number
            now = time.monotonic()
            if now < self._next and self._done < self.total:
                return
            self._next = now + EVERY_SECONDS
            new, seconds = self._done - self.finished, now - self._began
            speed = new / seconds if new and seconds > 0 else None
            self.show(Progress(self.what, self._done, self.total, self.unit, speed))


def in_threads(
    work: Callable[[Job, threading.Event], Result],
    jobs: Iterable[Job],
    threads: int,
    meter: Meter | None = None,
) -> Iterator[Result]:
    """Run jobs in threads and yield their results in the order of the jobs.

    Args:
        work: function of a job and an event, which is set when the result is no longer needed
            because another job failed or the iterator was closed. It may then return any value.
        jobs: arguments of ``work``.
        threads: number of threads.
        meter: counts finished jobs.

    Raises:
        Exception: first exception raised by a job, in the order of the jobs.
    """
    stopped = threading.Event()

    def run(job: Job) -> Result:
        result = work(job, stopped)
        if meter is not None:
            meter.add()
        return result

    with ThreadPoolExecutor(max(1, threads)) as pool:
        results = [pool.submit(run, job) for job in jobs]
        try:
            for result in results:
                yield result.result()
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)
