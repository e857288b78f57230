"""What a witness answers."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from aiperf_hpc import __version__
from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.run.heads import Head, RunId, Statement
from aiperf_hpc.service.access import BodyLimit
from aiperf_hpc.service.problem import ProblemError, problem_response
from aiperf_hpc.service.witness_server.limits import RateLimit
from aiperf_hpc.service.witness_server.log import WitnessLog
from aiperf_hpc.trial import Value

API: Final = "/api/v1"
MOST_BYTES: Final = 2_000
"""Bytes of the longest body: a head and a run's name."""
MOST_LINES: Final = 1_000
"""Statements that one answer has at most."""


class Shown(Value):
    """A head that a run shows."""

    run: RunId
    """The run's name."""
    head: Head
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
    app.add_exception_handler(AIPerfError, _refused)
    app.add_exception_handler(Exception, _failed)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_exception_handler(RequestValidationError, _invalid)

    app.add_middleware(_Limited, limit=limit)
    _add_routes(app, log, name)
    return app


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


def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, AIPerfError)  # noqa: S101 -- for the type checker
    return problem_response(error)


def _failed(_: Request, error: Exception) -> Response:
    """Say no more than that; the witness prints what it was."""
    detail = "an unexpected error; the witness's own output has it"
    return problem_response(ProblemError(HTTPStatus.INTERNAL_SERVER_ERROR, "unexpected", detail))


def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 -- for the type checker
    status = HTTPStatus(error.status_code)
    kind = status.phrase.lower().replace(" ", "-")
    detail = f"{request.method} is not possible here; /openapi.json says what is"
    return problem_response(ProblemError(status, kind, detail), error.headers)


def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 -- for the type checker
    first = error.errors()[0]
    detail = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return problem_response(ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid", detail))
