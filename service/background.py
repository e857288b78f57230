"""Work in threads that never hold up the end of the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """A few threads that do one thing after the other.

    They are daemons: an interrupt does not wait for the reading of a large run.
    """

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._threads = threads
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    def start(self) -> None:
        """Begin to work."""
        for number in range(self._threads):
            name = f"{self._name}-{number}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def stop(self) -> None:
        """Let each thread end once it has done what it does."""
        for _ in range(self._threads):
            self._queue.put(None)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have something done; the future has its result or error."""
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
