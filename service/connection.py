"""Limits on connections, which keep clients that send slowly from blocking a server."""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

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
