"""A witness listens, and answers until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from aiperf_hpc.service.endpoint import Endpoint
from aiperf_hpc.service.server import listen, quiet_config, url_of
from aiperf_hpc.service.witness_server.app import create_app
from aiperf_hpc.service.witness_server.limits import RateLimit
from aiperf_hpc.service.witness_server.log import WitnessLog

LONGEST_SECONDS: Final = 30.0
"""How long a connection may last: a statement takes milliseconds, and a client that sends its
request a byte at a time would keep its place."""
MOST_CONNECTIONS: Final = 500


class _Brief(H11Protocol):
    """A connection that ends after a while, whatever its client does."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.loop.call_later(LONGEST_SECONDS, transport.close)


def serve(
    log: WitnessLog,
    name: str,
    endpoint: Endpoint,
    *,
    per_minute: int,
    announce: Callable[[str], None],
) -> None:
    """Be a witness until the process is told to stop.

    Args:
        log: what it has said.
        name: what it calls itself.
        endpoint: where to listen, and the files of TLS.
        per_minute: how often a client may ask.
        announce: called with the URL once there is someone to answer.

    Raises:
        UsageError: the address cannot be had, or TLS cannot be used.
    """
    endpoint.check_tls()
    listener = listen(endpoint)
    server = make_server(create_app(log, name, RateLimit(per_minute)), endpoint)
    with contextlib.suppress(KeyboardInterrupt):
        announce(url_of(listener, endpoint))
        server.run(sockets=[listener])


def make_server(app: FastAPI, endpoint: Endpoint) -> uvicorn.Server:
    """Return what serves a witness, and leaves the process's logging and output alone."""
    return uvicorn.Server(quiet_config(app, endpoint, _Brief, MOST_CONNECTIONS))
