"""A witness that listens on this machine, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import until

from aiperf_hpc.service.endpoint import Endpoint
from aiperf_hpc.service.server import listen, url_of
from aiperf_hpc.service.witness_server.app import RateLimit, create_app, make_server
from aiperf_hpc.service.witness_server.log import WitnessLog


@contextmanager
def listening(
    folder: Path, utc: Callable[[], float] = time.time, port: int = 0
) -> Iterator[tuple[str, WitnessLog]]:
    """Give a witness's URL, and what it says, while it listens."""
    endpoint = Endpoint(port=port)
    listener = listen(endpoint)
    log = WitnessLog(folder, most_bytes=10_000_000, utc=utc)
    server = make_server(create_app(log, "w", RateLimit(100_000)), endpoint, print)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        yield url_of(listener, endpoint), log
    finally:
        server.should_exit = True
        thread.join()
        log.close()
