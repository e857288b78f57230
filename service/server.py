"""HTTP server, which runs until it is stopped.

It limits connections, so that clients that send slowly do not block it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, Self

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from aiperf_hpc.errors import AIPerfError, UsageError, restated
from aiperf_hpc.service.access import Policy
from aiperf_hpc.service.app import create_app
from aiperf_hpc.service.endpoint import Endpoint
from aiperf_hpc.service.run_queue import RunQueue
from aiperf_hpc.service.runs import FolderOfRuns, Runs

MOST_CONNECTIONS: Final = 500
"""Maximum number of connections. A process can have about 1,000 open files."""
REQUEST_SECONDS: Final = 30.0
"""Maximum time in seconds from the start of a connection, or from the previous response, until a
request has been received."""


class Connection(H11Protocol):
    """A connection that is closed if no request is received in time.

    If there are too many connections, the one that has waited longest for its request is closed.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._expect_request()
        if len(self.connections) >= MOST_CONNECTIONS:
            others = [each for each in self.connections - {self} if isinstance(each, Connection)]
            waiting = [each for each in others if each.receiving]
            if waiting:
                min(waiting, key=lambda each: each.waiting_since).abort()

    def on_response_complete(self) -> None:
        self._expect_request()
        super().on_response_complete()

    def _expect_request(self) -> None:
        self.waiting_since = self.loop.time()
        self.loop.call_at(self.waiting_since + REQUEST_SECONDS, self._check, self.waiting_since)

    def _check(self, since: float) -> None:
        if self.receiving and self.waiting_since == since:
            self.abort()

    @property
    def receiving(self) -> bool:
        """Whether the request has not been received completely."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def abort(self) -> None:
        """Close the connection without a response."""
        self.connections.discard(self)
        self.transport.abort()


SWITCH_SECONDS = 0.0001
START_SECONDS = 10.0
STOP_SECONDS = 5.0
UNREAD_MILLISECONDS = 60_000
BACKLOG: Final = 128
"""Maximum number of connections that wait to be accepted, and that are accepted at once."""
OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
REPORT_SECONDS: Final = 60.0
"""Minimum interval of log lines on connections that cannot be accepted, in seconds."""


def _quiet(_: str) -> None:
    pass


def serve(
    runs: Runs,
    endpoint: Endpoint,
    announce: Callable[[str], None] = _quiet,
    log: Callable[[str], None] = _quiet,
) -> None:
    """Serve runs until the process receives a signal to stop.

    Args:
        runs: runs to serve.
        endpoint: address, tokens and TLS files.
        announce: called with the URL once the server accepts requests.
        log: called with a line for each rejected request and each change.

    Raises:
        UsageError: the address is unavailable, or the tokens or TLS files are unusable.
    """
    queue = None
    if isinstance(runs, FolderOfRuns) and endpoint.token_file is not None:
        queue = RunQueue(runs.folder, log=log)
    server = _server(runs, endpoint, log, queue)
    listener = listen(endpoint)
    # The server re-raises the signal that ended it; an interrupt is the normal way to stop.
    with (
        contextlib.suppress(KeyboardInterrupt),
        contextlib.nullcontext() if queue is None else queue.working(),
        runs.served(),
        _prompt_threads(),
    ):
        announce(url_of(listener, endpoint))
        server.run(sockets=[listener])


@contextlib.contextmanager
def _prompt_threads() -> Iterator[None]:
    """Shorten the switch interval of threads while the block executes.

    The event loop wakes often and briefly. Each time, and after each call to a file system, it
    waits up to the switch interval for a reading thread. A list of 100 runs makes about 400 calls.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class ServerThread:
    """A service that runs in a background thread of the process."""

    def __init__(
        self,
        runs: Runs,
        endpoint: Endpoint = Endpoint(),  # noqa: B008 -- it is frozen
        log: Callable[[str], None] = _quiet,
        queue: RunQueue | None = None,
    ) -> None:
        """Create a service from runs, an endpoint, and the queue for write access.

        Raises UsageError if the tokens or TLS files are unusable.
        """
        self.endpoint = endpoint
        """Requested endpoint; after the start, with the actual port."""
        self._runs = runs
        self._server = _server(runs, endpoint, log, queue)
        self._served = contextlib.ExitStack()
        self._thread: threading.Thread | None = None
        self.url = ""

    def start(self) -> None:
        """Start to listen and to answer requests.

        Raises:
            UsageError: the address is unavailable.
            AIPerfError: the server does not start.
        """
        listener = listen(self.endpoint)
        self.endpoint = replace(self.endpoint, port=listener.getsockname()[1])
        self.url = url_of(listener, self.endpoint)
        self._served.enter_context(self._runs.served())
        self._served.enter_context(_prompt_threads())
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name="rest", daemon=True
        )
        self._thread.start()
        end = time.monotonic() + START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > end:
                self.stop()
                listener.close()
                raise AIPerfError(f"the service at {self.url} did not start")
            time.sleep(0.01)

    def stop(self) -> None:
        """Complete the pending requests, then stop the server."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
            self._thread = None
            self._served.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def _server(
    runs: Runs,
    endpoint: Endpoint,
    log: Callable[[str], None],
    queue: RunQueue | None = None,
) -> Server:
    policy = Policy(endpoint.tokens(), endpoint.open_reading, endpoint.host)
    endpoint.check_tls()
    app = create_app(runs, policy, log, queue)
    logging.getLogger("uvicorn.error").addFilter(_worth_saying)
    return Server(app, endpoint, log, ending=app.state.ending)


class Server(uvicorn.Server):
    """A server that does not change the process's logging and output.

    On shutdown it ends event streams, so that they do not delay it.
    """

    def __init__(
        self,
        app: FastAPI,
        endpoint: Endpoint,
        log: Callable[[str], None],
        connection: type[Connection] = Connection,
        ending: asyncio.Event | None = None,
    ) -> None:
        """Create a server.

        Args:
            app: application that answers requests.
            endpoint: address and TLS files.
            log: called with a line, at most once a minute, while connections cannot be accepted.
            connection: class of the connections.
            ending: set on shutdown.
        """
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http=connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=MOST_CONNECTIONS,
            backlog=BACKLOG,
            ssl_certfile=endpoint.certificate,
            ssl_keyfile=endpoint.key,
            timeout_graceful_shutdown=2,
        )
        super().__init__(config)
        self._log = log
        self._ending = ending or asyncio.Event()
        self._reported = -math.inf

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._report)
        await super().startup(sockets)

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report an error of the event loop; that no connection can be accepted, once a minute."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in OUT_OF_RESOURCES:
            loop.default_exception_handler(context)
        elif loop.time() - self._reported >= REPORT_SECONDS:
            self._reported = loop.time()
            self._log(f"service: connections cannot be accepted: {error.strerror}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ending.set()
        await super().shutdown(sockets)


def _worth_saying(record: logging.LogRecord) -> bool:
    """Return False for log records about a client that was disconnected because it did not read."""
    return "without completing response" not in record.getMessage()


def check_free(endpoint: Endpoint) -> None:
    """Raise UsageError if a service could not start at an endpoint now."""
    endpoint.tokens()
    endpoint.check_tls()
    listen(endpoint).close()


def listen(endpoint: Endpoint) -> socket.socket:
    """Return a listening socket, to detect an invalid address before anything starts."""
    host, port = endpoint.host, endpoint.port
    with restated(f"cannot serve at {host}"):
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # The connection is closed if the client does not acknowledge data within this time.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MILLISECONDS)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(_refused(host, port, error)) from None
    return listener


def _refused(host: str, port: int, error: OSError) -> str:
    reasons = {
        errno.EADDRINUSE: "the port is in use; choose another, or 0 for any free one",
        errno.EACCES: "not permitted; choose a port from 1024 on",
        errno.EADDRNOTAVAIL: "this machine does not have that address",
    }
    return f"cannot serve at {host}, port {port}: {reasons.get(error.errno or 0, error.strerror)}"


def url_of(listener: socket.socket, endpoint: Endpoint) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    return f"{endpoint.scheme}://{name}:{port}"
