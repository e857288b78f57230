"""REST application of a witness, and its server."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from threading import Lock
from typing import Annotated, Final

from fastapi import FastAPI, Header, Query, Response
from fastapi.responses import PlainTextResponse
from pydantic import Field
from starlette.types import ASGIApp, Receive, Scope, Send

from aiperf_hpc import __version__
from aiperf_hpc.run.journal_digest import JournalDigest, RunId, Statement
from aiperf_hpc.service.access import BodyLimit
from aiperf_hpc.service.endpoint import Endpoint
from aiperf_hpc.service.problem import ProblemError, add_problem_handlers, problem_response
from aiperf_hpc.service.server import Connection, Server, listen, url_of
from aiperf_hpc.service.witness_server.log import WitnessLog
from aiperf_hpc.trial import Value

API: Final = "/api/v1"
MOST_BYTES: Final = 2_000
"""Maximum size of a request body in bytes: a journal digest and the name of a run."""
MOST_LINES: Final = 1_000
"""Maximum number of statements per response."""
LONGEST_SECONDS: Final = 30.0
"""Maximum duration of a connection in seconds. A statement takes milliseconds, and a client that
sends its request byte by byte would occupy a connection."""
MOST_CLIENTS: Final = 10_000
"""Maximum number of tracked clients; the one with the oldest request is dropped first."""


class SubmittedDigest(Value):
    """A journal digest submitted by a run."""

    run: RunId
    """Name of the run."""
    head: JournalDigest
    """Digest of the primary journal."""
    after: Annotated[int, Field(ge=0, lt=2**53)] = 0
    """Number of the last received statement within the run."""


class Statements(Value):
    """Statements of the witness about a run."""

    statements: tuple[Statement, ...]
    """Consecutive statements in order; at most the first hundred."""


class Witness(Value):
    """Identity of the witness."""

    version: str = __version__
    """Version of AIPerf-HPC."""
    name: str
    """Name of the witness."""
    fingerprint: str
    """Fingerprint of the witness's key, in the format of ``ssh-keygen -l``."""
    statements: int
    """Number of statements made."""


def create_app(log: WitnessLog, name: str, limit: RateLimit) -> FastAPI:
    """Return the application of a witness.

    Args:
        log: log of its statements.
        name: name of the witness.
        limit: rate limit of each client.
    """
    app = FastAPI(
        title="AIPerf-HPC witness",
        version=__version__,
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(BodyLimit, most=MOST_BYTES)
    add_problem_handlers(app)
    app.add_middleware(_Limited, limit=limit)
    _add_routes(app, log, name)
    return app


class RateLimit:
    """Token bucket per client, with a rate per minute and a burst of one minute's requests."""

    def __init__(self, per_minute: int, now: Callable[[], float] = time.monotonic) -> None:
        self._most = float(per_minute)
        self._each = 60.0 / per_minute
        self._now = now
        self._lock = Lock()
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Remaining tokens of each client, with the time of that count in seconds."""

    def seconds_until(self, client: str) -> float:
        """Take a token; return 0, or the seconds that the client must wait for the next."""
        with self._lock:
            now = self._now()
            left, since = self._left.pop(client, (self._most, now))
            left = min(self._most, left + (now - since) / self._each)
            allowed = left >= 1.0
            self._left[client] = (left - allowed, now)
            while len(self._left) > MOST_CLIENTS:
                self._left.popitem(last=False)
            return 0.0 if allowed else (1.0 - left) * self._each


class _Limited:
    """Middleware that rejects clients above the rate limit before it reads their request."""

    def __init__(self, app: ASGIApp, limit: RateLimit) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        wait = math.ceil(self._limit.seconds_until(client[0] if client else ""))
        if wait == 0:
            await self._app(scope, receive, send)
            return
        what = f"ask again in {wait} s"
        problem = ProblemError(HTTPStatus.TOO_MANY_REQUESTS, "too-often", what)
        await problem_response(problem, {"Retry-After": str(wait)})(scope, receive, send)


def _add_routes(app: FastAPI, log: WitnessLog, name: str) -> None:
    key = log.key.public

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Report that the witness is running."""
        return {"status": "ok"}

    @app.get(API)
    async def about() -> Witness:
        """Return the identity of the witness."""
        return Witness(name=name, fingerprint=key.fingerprint, statements=log.count)

    @app.get(f"{API}/key", response_class=PlainTextResponse)
    async def public_key() -> str:
        """Return the public key in OpenSSH format."""
        return key.line

    @app.post(f"{API}/statements")
    def state(
        shown: SubmittedDigest, authorization: Annotated[str, Header(max_length=200)]
    ) -> Statements:
        """Sign a statement on a journal digest; return the run's statements since the last received
        one."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or len(token) < 32:
            raise ProblemError(
                HTTPStatus.UNAUTHORIZED,
                "token-needed",
                "submit a run's journal digests with a token of 32 characters or more, always the "
                "same: Authorization: Bearer TOKEN",
            )
        made = log.add(shown.run, token, shown.head, shown.after)
        return Statements(statements=tuple(made))

    @app.get(f"{API}/statements")
    def statements(
        first: Annotated[int, Query(ge=1, lt=2**53)] = 1,
        limit: Annotated[int, Query(ge=1, le=MOST_LINES)] = MOST_LINES,
    ) -> Response:
        """Return statements as stored in the log, one per line, from a number on."""
        return Response(log.lines(first, limit), media_type="application/jsonl")

    @app.get(f"{API}/runs/{{run}}/statements")
    def of_run(run: str, after: Annotated[int, Query(ge=0, lt=2**53)] = 0) -> Statements:
        """Return the statements on a run after a number within the run."""
        return Statements(statements=tuple(log.of_run(run, after)))


class _Brief(Connection):
    """A connection with a maximum duration."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.loop.call_later(LONGEST_SECONDS, transport.close)


def serve(
    log: WitnessLog,
    name: str,
    endpoint: Endpoint,
    *,
    per_minute: int,
    announce: Callable[[str], None],
) -> None:
    """Run a witness until the process receives a signal to stop.

    Args:
        log: log of its statements.
        name: name of the witness.
        endpoint: address and TLS files.
        per_minute: maximum number of requests per client and minute.
        announce: called with the URL once the server accepts requests, and with a line when
            connections cannot be accepted.

    Raises:
        UsageError: the address is unavailable, or the TLS files are unusable.
    """
    endpoint.check_tls()
    listener = listen(endpoint)
    server = make_server(create_app(log, name, RateLimit(per_minute)), endpoint, announce)
    with contextlib.suppress(KeyboardInterrupt):
        announce(url_of(listener, endpoint))
        server.run(sockets=[listener])


def make_server(app: FastAPI, endpoint: Endpoint, announce: Callable[[str], None]) -> Server:
    """Return the server of a witness."""
    return Server(app, endpoint, announce, _Brief)
