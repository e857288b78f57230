"""The application: every route, and one body for every refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Literal

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE_LATEST
from pydantic import Field
from starlette.exceptions import HTTPException

from aiperf_hpc import __version__
from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.results.views.run_summary import LASTING
from aiperf_hpc.results.views.run_view import RunStatus, RunView
from aiperf_hpc.service.access import BodyLimit, Guard, Policy
from aiperf_hpc.service.answers.base import Answer
from aiperf_hpc.service.answers.score import Quantities, quantities
from aiperf_hpc.service.changes import change_routes, stop_routes
from aiperf_hpc.service.conductor import Conductor
from aiperf_hpc.service.documentation import POLICY, page
from aiperf_hpc.service.interface import describe
from aiperf_hpc.service.metrics import Measured, exposition, new_registry
from aiperf_hpc.service.page_routes import page_routes
from aiperf_hpc.service.primaries import Primaries
from aiperf_hpc.service.problem import MEDIA_TYPE, Fault, Problem, ProblemError, problem_response
from aiperf_hpc.service.reading import compare_routes, only_run_routes, run_routes
from aiperf_hpc.service.runs import FolderOfRuns, RunList, Runs
from aiperf_hpc.service.stream import OpenStreams
from aiperf_hpc.streams import without_stand_ins
from aiperf_hpc.untrusted.bounds import message_of

API = "/api/v1"
DESCRIPTION = """\
Runs of AIPerf-HPC, while they last and afterwards.

Every answer is JSON. Sizes are in bytes, times in seconds, moments in UTC seconds since 1970, where
a name does not say otherwise. `Age` says how old an answer is, in seconds. Where there is none, the
body is a `Problem` (RFC 9457). A run whose records are being read for the first time answers 202
with a `Loading`, until it can answer.
"""
TAGS = [
    {"name": "runs", "description": "The runs that are served."},
    {"name": "run", "description": "One run: what it does and did."},
    {"name": "one run alone", "description": "The same, where the service serves one run alone."},
    {"name": "changes", "description": "What needs a token: submit, cancel, stop, scale, resume."},
    {"name": "service", "description": "The service itself."},
]


class Health(Answer):
    """The service answers."""

    status: str = Field("ok", examples=["ok"])
    """Always `ok`."""


Change = Literal["submit", "stop", "scale", "resume"]


class About(Answer):
    """What serves."""

    version: str = Field(__version__, examples=["0.1.0"])
    """The version of AIPerf-HPC."""
    run: str | None
    """The run, where one alone is served."""
    changes: tuple[Change, ...] = Field((), examples=[("submit", "stop", "scale", "resume")])
    """What can be changed here by who shows a token."""


def create_app(
    runs: Runs,
    policy: Policy | None = None,
    log: Callable[[str], None] = lambda _: None,
    conductor: Conductor | None = None,
) -> FastAPI:
    """Return the application over some runs.

    Args:
        runs: the runs.
        policy: who may do what; reading is open, and nothing else, when not given.
        log: what is done with a line about an attempt.
        conductor: what starts, stops and resumes runs, where that is possible.
    """
    # The usual pages of documentation load scripts from elsewhere, which a cluster cannot.
    app = FastAPI(
        title="AIPerf-HPC",
        summary="Runs of the benchmark, while they last and afterwards",
        description=DESCRIPTION,
        version=__version__,
        openapi_tags=TAGS,
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(BodyLimit)
    app.state.ending = asyncio.Event()  # Set once the server is told to stop: streams end.
    app.state.streams = OpenStreams()
    app.add_middleware(Guard, policy=policy or Policy(), log=log)
    registry = new_registry()
    app.add_middleware(Measured, registry=registry)
    app.add_exception_handler(AIPerfError, _refused)
    app.add_exception_handler(Exception, _failed)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.include_router(page_routes())
    changes = _add_changes(app, runs, policy or Policy(), conductor)
    app.include_router(_service_routes(runs, changes))
    _add_metrics(app, runs, registry, conductor)
    _add_documentation(app)
    app.include_router(_runs_routes(runs), prefix=API)
    app.include_router(compare_routes(runs), prefix=API)
    app.include_router(run_routes(runs), prefix=f"{API}/runs/{{run}}", tags=["run"])
    if runs.only is not None:
        app.include_router(only_run_routes(runs.only), prefix=API, tags=["one run alone"])
    describe(app)
    return app


def _add_changes(
    app: FastAPI, runs: Runs, policy: Policy, conductor: Conductor | None
) -> tuple[Change, ...]:
    """Add the routes of what can be changed; return what that is."""
    if conductor is not None and isinstance(runs, FolderOfRuns):
        app.include_router(change_routes(runs, conductor), prefix=API)
        return "submit", "stop", "scale", "resume"
    if runs.only is not None and policy.tokens is not None:
        app.include_router(stop_routes(runs.find, Primaries()), prefix=API)
        return "stop", "scale"
    return ()


def _add_metrics(
    app: FastAPI, runs: Runs, registry: CollectorRegistry, conductor: Conductor | None
) -> None:
    @app.get(
        "/metrics",
        tags=["service"],
        response_class=PlainTextResponse,
        responses={200: {"description": "Metrics in Prometheus' text format"}, **PROBLEM},
    )
    async def metrics() -> Response:
        """Return the runs' and the service's metrics for Prometheus."""
        listed = await run_in_threadpool(runs.list)
        queue = None if conductor is None else conductor.queue()
        text = exposition(registry, listed, await _statuses(runs, listed), queue)
        return Response(text, media_type=CONTENT_TYPE_LATEST)


async def _statuses(runs: Runs, listed: RunList) -> dict[str, RunStatus]:
    """Return the statuses of the runs that go on, as far as they are there soon."""
    found = {}
    for row in listed.runs:
        run = runs.known(row.name) if row.state in LASTING else None
        if run is not None and (status := await run.ask(RunView.status)) is not None:
            found[row.name] = status
    return found


def _add_documentation(app: FastAPI) -> None:
    @app.get("/docs", response_class=HTMLResponse, tags=["service"])
    async def docs() -> Response:
        """Return a page that describes all of this."""
        return HTMLResponse(page(app.openapi()), headers={"Content-Security-Policy": POLICY})


PROBLEM: dict[int | str, dict[str, Any]] = {
    503: {
        "model": Problem,
        "description": "The runs cannot be read",
        "content": {MEDIA_TYPE: {}},
    }
}


def _service_routes(runs: Runs, changes: tuple[Change, ...]) -> APIRouter:
    router = APIRouter(tags=["service"])

    @router.get("/healthz")
    async def healthz() -> Health:
        """Say that the service is there."""
        return Health()

    @router.get("/readyz", responses=PROBLEM)
    async def readyz() -> Health:
        """Say that the service can read its runs."""
        await run_in_threadpool(runs.check)
        return Health()

    @router.get(API)
    async def about() -> About:
        """Return what serves."""
        return About(run=None if runs.only is None else runs.only.name, changes=changes)

    return router


def _runs_routes(runs: Runs) -> APIRouter:
    router = APIRouter(tags=["runs"])

    @router.get("/runs", response_model=RunList, responses=PROBLEM)
    async def list_runs() -> Response:
        """Return all runs, the latest first."""
        listed = await run_in_threadpool(runs.list)
        return Response(listed.model_dump_json(), media_type="application/json")

    @router.get("/quantities")
    async def describe_quantities() -> Quantities:
        """Return the headline figures that runs have: their titles, units and formats."""
        return quantities()

    return router


def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, AIPerfError)  # noqa: S101 -- for the type checker
    return problem_response(error)


def _failed(_: Request, error: Exception) -> Response:
    """Say no more than that; the server prints what it was."""
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    detail = "an unexpected error; the service's own output has it"
    return problem_response(ProblemError(status, "unexpected", detail))


def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 -- for the type checker
    status = HTTPStatus(error.status_code)
    kind = status.phrase.lower().replace(" ", "-")
    detail = {
        HTTPStatus.NOT_FOUND: "there is nothing at this address; /openapi.json says what there is",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{request.method} is not possible at this address",
    }.get(status, str(error.detail))
    return problem_response(ProblemError(status, kind, detail), error.headers)


def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 -- for the type checker
    faults = tuple(_fault(each) for each in error.errors())
    detail = "; ".join(f"{fault.where}: {fault.message}" for fault in faults[:3])
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    return problem_response(ProblemError(status, "invalid", detail, faults))


def _fault(said: Mapping[str, Any]) -> Fault:
    where = ".".join(map(str, said["loc"]))
    return Fault(where=without_stand_ins(where), message=without_stand_ins(message_of(said)))
