"""A served run, which is read in the background to bound the latency of requests."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from http import HTTPStatus
from queue import SimpleQueue
from typing import Any, TypeVar

from pydantic import BaseModel

from aiperf_hpc.results.views.cached_view import CachedView, Text
from aiperf_hpc.results.views.run_catalog import LASTING, RunSummary
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.history import no_collections
from aiperf_hpc.service.answers.base import Loading
from aiperf_hpc.service.answers.events import EventLog
from aiperf_hpc.service.problem import ProblemError

T = TypeVar("T")

PATIENCE_SECONDS = 0.4
"""Seconds that a request waits for its answer before it returns that the run is being read."""


AGAIN_SECONDS, RECENT_SECONDS = 0.02, 60.0
"""Seconds that a request waits if a recent answer is cached, and maximum age of that answer."""
STILL_SECONDS = 5.0
"""Validity of the row of an inactive run, in seconds."""
KEPT = 32
"""Maximum number of cached answers, which are returned with their age while a new one is
pending."""


class Background:
    """A small thread pool, which executes tasks in order.

    The threads are daemons, so an interrupt does not wait until a large run has been read.
    """

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._threads = threads
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    def start(self) -> None:
        """Start the threads."""
        for number in range(self._threads):
            name = f"{self._name}-{number}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def stop(self) -> None:
        """Let each thread end after its current task."""
        for _ in range(self._threads):
            self._queue.put(None)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Submit a task; return the future of its result or error."""
        future: Future[T] = Future()
        self._queue.put((future, work))
        return future

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            future, work = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 -- whoever asked raises it
                future.set_exception(error)
            del item, future, work


class Readers:
    """Separate threads for first reads and for answers: reading a large run delays no answer."""

    def __init__(self, patience: float = PATIENCE_SECONDS, again: float = AGAIN_SECONDS) -> None:
        """Create the threads, with the maximum waiting times of requests in seconds.

        Args:
            patience: time before a request returns that its run is being read.
            again: time before a request returns a recent answer from the cache.
        """
        self.patience = patience
        self.again = again
        self.opening = Background("open", 2)
        self.answering = Background("answer", 6)

    def start(self) -> None:
        self.opening.start()
        self.answering.start()

    def stop(self) -> None:
        self.opening.stop()
        self.answering.stop()


class ServedRun:
    """A run that is read once for all clients."""

    def __init__(self, name: str, live: CachedView, readers: Readers) -> None:
        """Serve a run from its name and a view that may be unread."""
        self.name = name
        self.live = live
        self.events = EventLog()
        self.asked_at = time.monotonic()
        """Time of the last request, in monotonic seconds."""
        self._loading_since: float | None = None
        """Start of the first read in monotonic seconds; None before and after it."""
        self._readers = readers
        self._opened = False
        self._opening: Future[None] | None = None
        self._row: Future[RunSummary] | None = None
        self._row_asked_at = 0.0
        self._last_row: RunSummary | None = None
        self._under_way: dict[object, Future[Any]] = {}
        self._recent: dict[object, tuple[bytes, float]] = {}
        """Latest answers, with the time of their data in monotonic seconds."""
        self._renewal = contextlib.ExitStack()

    async def text(self, question: Callable[[RunView], BaseModel]) -> Text | None:
        """Return the answer as JSON, or None if it is still pending after the waiting time.

        Raises:
            AIPerfError: the run cannot be read, or the requested resource does not exist.
        """
        self.asked_at = time.monotonic()
        answer = self.live.text_at_hand(question)
        if answer is None:
            before = self._recent_answer(question)
            recent = before is not None and before.age < RECENT_SECONDS
            answer = await self._computed(
                ("text", question),
                lambda: self.live.text(question),
                self._readers.again if recent else self._readers.patience,
            )
            if answer is None:
                return before
        self._recent.pop(question, None)
        self._recent[question] = answer.body, time.monotonic() - answer.age
        if len(self._recent) > KEPT:
            del self._recent[next(iter(self._recent))]
        return answer

    def _recent_answer(self, question: object) -> Text | None:
        """Return the cached answer with its age while a new one is pending."""
        if question not in self._recent:
            return None
        body, told_at = self._recent[question]
        return Text(body, time.monotonic() - told_at)

    async def ask(self, question: Callable[[RunView], T]) -> T | None:
        """Return the answer as a value; otherwise as ``text``."""
        self.asked_at = time.monotonic()
        return await self._computed(
            ("value", question), lambda: self.live.ask(question), self._readers.patience
        )

    def load(self) -> Future[None]:
        """Start the first read of the run, unless it is complete or in progress."""
        opening = self._opening
        if opening is None or (opening.done() and not self._opened):
            opening = self._opening = self._readers.opening.submit(self._open)
        return opening

    def row(self) -> RunSummary | None:
        """Return the latest row of the run for a list, and request a new one; never blocks.

        Raises:
            AIPerfError: the run could not be read.
        """
        opening = self._opening
        if opening is None or not opening.done():
            self.load()
            return None
        if opening.exception() is not None:
            self.load()  # The error is raised by the next request.
            opening.result()
        work = self._row
        if work is not None and not work.done():
            return self._last_row
        if work is not None:
            self._last_row = work.result()
        # Even the check for new records needs a system call for each journal.
        still = work is not None and not self.goes_on
        if not still or time.monotonic() >= self._row_asked_at + STILL_SECONDS:
            self._row_asked_at = time.monotonic()
            self._row = self._readers.answering.submit(lambda: self.live.ask(RunSummary.of))
        return self._last_row

    def check(self) -> None:
        """Raise AIPerfError if the run is unreadable and that is known within the waiting time."""
        began, opening = time.monotonic(), self.load()
        wait([opening], self._readers.patience)
        if not opening.done():
            raise ProblemError(
                HTTPStatus.SERVICE_UNAVAILABLE, "loading", "the run's records are being read"
            )
        opening.result()
        work = self._readers.answering.submit(lambda: self.live.ask(RunSummary.of))
        wait([work], self._readers.patience - (time.monotonic() - began))
        if work.done():
            work.result()

    def loading(self) -> Loading:
        """Return the seconds since the first read started."""
        since = self._loading_since
        seconds = 0.0 if since is None else time.monotonic() - since
        return Loading(run=self.name, seconds=round(seconds, 1))

    @property
    def goes_on(self) -> bool:
        """Whether the run is being read or is active."""
        if self._opening is None or not self._opening.done():
            return self._opening is not None
        return self._last_row is not None and self._last_row.state in LASTING

    def close(self) -> None:
        """Stop refreshing its answers."""
        self._renewal.close()

    def _open(self) -> None:
        self._loading_since = time.monotonic()
        try:
            with no_collections(keep_all=False):
                self._last_row = self.live.ask(RunSummary.of)
                # A later collection of a large run, which has no cycles, would block all threads.
                gc.freeze()
            self._renewal.enter_context(self.live.renewed())
            self._opened = True
        finally:
            self._loading_since = None

    async def _computed(self, key: object, make: Callable[[], T], seconds: float) -> T | None:
        """Return a result of another thread, shared by all requests, or None if it is still
        pending."""
        began = time.monotonic()
        if not self._opened and not await _done(self.load(), seconds):
            return None
        work = self._under_way.get(key)
        if work is None:
            work = self._under_way[key] = self._readers.answering.submit(make)
            work.add_done_callback(lambda _: self._under_way.pop(key, None))
        left = seconds - (time.monotonic() - began)
        return work.result() if await _done(work, left) else None


async def _done(work: Future[Any], seconds: float) -> bool:
    """Wait for a future; return whether it is done. Raises its error."""
    wrapped = asyncio.ensure_future(asyncio.wrap_future(work))
    done, _ = await asyncio.wait({wrapped}, timeout=max(0.0, seconds))
    if not done:
        wrapped.add_done_callback(lambda late: late.cancelled() or late.exception())
        return False
    wrapped.result()
    return True
