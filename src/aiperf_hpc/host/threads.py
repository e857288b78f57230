"""Work in a thread of its own while a block runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def in_background(
    work: Callable[[threading.Event], object], name: str, patience: float | None = None
) -> Iterator[None]:
    """Run ``work`` in a daemon thread while the block runs.

    Args:
        work: called with an event that is set when the block ends; it returns soon after.
        name: the thread's name.
        patience: how many seconds the end of the block waits for it; until it ends when not given.
    """
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(patience)
