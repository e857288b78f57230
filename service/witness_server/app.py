"""The REST service of a witness, and its server."""

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

import uvicorn
from fastapi import FastAPI, Header, Query, Response
from fastapi.responses import PlainTextResponse
from pydantic import Field
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from aiperf_hpc import __version__
from aiperf_hpc.run.journal_digest import JournalDigest, RunId, Statement
from aiperf_hpc.service.access import BodyLimit
from aiperf_hpc.service.endpoint import Endpoint
from aiperf_hpc.service.problem import ProblemError, add_problem_handlers, problem_response
from aiperf_hpc.service.server import listen, quiet_config, url_of
from aiperf_hpc.service.witness_server.log import WitnessLog
from aiperf_hpc.trial import Value

API: Final = "/api/v1"
MOST_BYTES: Final = 2_000
"""Bytes of the longest body: a head and a run's name."""
MOST_LINES: Final = 1_000
"""Statements that one answer has at most."""
LONGEST_SECONDS: Final = 30.0
"""How long a connection may last: a statement takes milliseconds, and a client that sends its
request a byte at a time would keep its place."""
MOST_CONNECTIONS: Final = 500
MOST_CLIENTS: Final = 10_000
"""Clients that are remembered; the one that asked longest ago is forgotten first."""


class Shown(Value):
    """A head that a run shows."""

    run: RunId
    """The run's name."""
    head: JournalDigest
    """The head of its primary journal."""
    after: Annotated[int, Field(ge=0, lt=2**53)] = 0
    """The number, within the run, of the last statement that was received."""


class Statements(Value):
    """What the witness has said of a run."""

    statements: tuple[Statement, ...]
    """In order, without a gap; the first hundred, if there are more."""


class Witness(Value):
    """Who this witness is."""

    version: str = __version__
    """The version of AIPerf-HPC."""
    name: str
    """What it calls itself."""
    fingerprint: str
    """The fingerprint of its key, as ``ssh-keygen -l`` prints it."""
    statements: int
    """How many it has made."""


def create_app(log: WitnessLog, name: str, limit: RateLimit) -> FastAPI:
    """Return the application of a witness.

    Args:
        log: what it has said.
        name: what it calls itself.
        limit: how often a client may ask.
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
    """Lets each client do something so often a minute, and a minute's worth at once."""

    def __init__(self, per_minute: int, now: Callable[[], float] = time.monotonic) -> None:
        self._most = float(per_minute)
        self._each = 60.0 / per_minute
        self._now = now
        self._lock = Lock()
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """What each client has left, and when that was, seconds."""

    def seconds_until(self, client: str) -> float:
        """Take one; return 0, or how long a client has to wait for its next."""
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
    """Refuses a client that asks too often, before anything is read of what it asks."""

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
        """Say that the witness is there."""
        return {"status": "ok"}

    @app.get(API)
    async def about() -> Witness:
        """Say who this is."""
        return Witness(name=name, fingerprint=key.fingerprint, statements=log.count)

    @app.get(f"{API}/key", response_class=PlainTextResponse)
    async def public_key() -> str:
        """Return the public key, as OpenSSH writes it."""
        return key.line

    @app.post(f"{API}/statements")
    def state(shown: Shown, authorization: Annotated[str, Header(max_length=200)]) -> Statements:
        """State that a head was shown now; return what was stated of the run since."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or len(token) < 32:
            raise ProblemError(
                HTTPStatus.UNAUTHORIZED,
                "token-needed",
                "whoever shows a run's heads shows a token of 32 characters or more, always the "
                "same: Authorization: Bearer TOKEN",
            )
        made = log.add(shown.run, token, shown.head, shown.after)
        return Statements(statements=tuple(made))

    @app.get(f"{API}/statements")
    def statements(
        first: Annotated[int, Query(ge=1, lt=2**53)] = 1,
        most: Annotated[int, Query(ge=1, le=MOST_LINES)] = MOST_LINES,
    ) -> Response:
        """Return statements as they are in the log, a line each, from a number on."""
        return Response(log.lines(first, most), media_type="application/jsonl")

    @app.get(f"{API}/runs/{{run}}/statements")
    def of_run(run: str, after: Annotated[int, Query(ge=0, lt=2**53)] = 0) -> Statements:
        """Return what was stated of a run, after a number within the run."""
        return Statements(statements=tuple(log.of_run(run, after)))


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
