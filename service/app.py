"""The application with all routes and one format for all errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from fastapi import APIRouter, FastAPI, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, PlainTextResponse
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE_LATEST
from pydantic import Field

from aiperf_hpc import __version__
from aiperf_hpc.results.views.run_catalog import LASTING
from aiperf_hpc.results.views.run_view import RunStatus
from aiperf_hpc.service.access import BodyLimit, Guard, Policy
from aiperf_hpc.service.answers.base import Answer
from aiperf_hpc.service.answers.progress import Quantities, quantities
from aiperf_hpc.service.answers.progress import status as run_status
from aiperf_hpc.service.control_routes import control_routes, queue_routes
from aiperf_hpc.service.documentation import POLICY, describe, page
from aiperf_hpc.service.metrics import Measured, exposition, new_registry
from aiperf_hpc.service.page_routes import page_routes
from aiperf_hpc.service.problem import add_problem_handlers, problems
from aiperf_hpc.service.read_routes import compare_routes, only_run_routes, run_routes
from aiperf_hpc.service.run_queue import Primaries, RunQueue
from aiperf_hpc.service.runs import FolderOfRuns, RunList, Runs
from aiperf_hpc.service.stream import OpenStreams

API = "/api/v1"
DESCRIPTION = """\
Runs of AIPerf-HPC, both active and finished.

Every response is JSON. Sizes are in bytes, durations in seconds and times in UTC seconds since
1970, unless a name states otherwise. The `Age` header states the age of a response in seconds. The
body of an error is a `Problem` (RFC 9457). While the records of a run are being read for the first
time, the response is 202 with a `Loading`.
"""
TAGS = [
    {"name": "runs", "description": "The runs that are served."},
    {"name": "run", "description": "The status, trials, machines and files of one run."},
    {"name": "one run alone", "description": "The same routes of a service for a single run."},
    {
        "name": "changes",
        "description": "Submit, cancel, stop, scale and resume runs, with a token.",
    },
    {"name": "service", "description": "The service itself."},
]


class Health(Answer):
    """Health of the service."""

    status: str = Field("ok", examples=["ok"])
    """Always `ok`."""


Change = Literal["submit", "stop", "scale", "resume"]


class About(Answer):
    """Description of the service."""

    version: str = Field(__version__, examples=["0.1.0"])
    """Version of AIPerf-HPC."""
    run: str | None
    """Name of the run if the service has only one."""
    changes: tuple[Change, ...] = Field((), examples=[("submit", "stop", "scale", "resume")])
    """Operations available to clients with a token."""


def create_app(
    runs: Runs,
    policy: Policy | None = None,
    log: Callable[[str], None] = lambda _: None,
    queue: RunQueue | None = None,
) -> FastAPI:
    """Return the application that serves runs.

    Args:
        runs: runs to serve.
        policy: access policy; by default everyone may read and nobody may write.
        log: called with a line for each rejected request and each change.
        queue: queue of runs, if clients may submit runs.
    """
    # FastAPI's documentation pages load scripts from a CDN, which a cluster may not reach.
    app = FastAPI(
        title="AIPerf-HPC",
        summary="Benchmark runs, both active and finished",
        description=DESCRIPTION,
        version=__version__,
        openapi_tags=TAGS,
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(BodyLimit)
    app.state.ending = asyncio.Event()  # Set when the server shuts down, which ends event streams.
    app.state.streams = OpenStreams()
    app.add_middleware(Guard, policy=policy or Policy(), log=log)
    registry = new_registry()
    app.add_middleware(Measured, registry=registry)
    add_problem_handlers(app)
    app.include_router(page_routes())
    changes = _add_changes(app, runs, policy or Policy(), queue)
    app.include_router(_service_routes(runs, changes))
    _add_metrics(app, runs, registry, queue)
    _add_documentation(app)
    app.include_router(_runs_routes(runs), prefix=API)
    app.include_router(compare_routes(runs), prefix=API)
    app.include_router(run_routes(runs), prefix=f"{API}/runs/{{run}}", tags=["run"])
    if runs.only is not None:
        app.include_router(only_run_routes(runs.only, runs), prefix=API, tags=["one run alone"])
    describe(app)
    return app


def _add_changes(
    app: FastAPI, runs: Runs, policy: Policy, queue: RunQueue | None
) -> tuple[Change, ...]:
    """Add the routes for write access; return the names of the operations."""
    if queue is not None and isinstance(runs, FolderOfRuns):
        app.include_router(queue_routes(runs, queue), prefix=API)
        app.include_router(control_routes(runs, queue), prefix=API)
        return "submit", "stop", "scale", "resume"
    if runs.only is not None and policy.tokens is not None:
        app.include_router(control_routes(runs, Primaries()), prefix=API)
        return "stop", "scale"
    return ()


def _add_metrics(
    app: FastAPI, runs: Runs, registry: CollectorRegistry, queue: RunQueue | None
) -> None:
    @app.get(
        "/metrics",
        tags=["service"],
        response_class=PlainTextResponse,
        responses={200: {"description": "Metrics in Prometheus' text format"}, **PROBLEM},
    )
    async def metrics() -> Response:
        """Return metrics of the runs and of the service for Prometheus."""
        listed = await run_in_threadpool(runs.list)
        submissions = None if queue is None else queue.submissions()
        text = exposition(registry, listed, await _statuses(runs, listed), submissions)
        return Response(text, media_type=CONTENT_TYPE_LATEST)


async def _statuses(runs: Runs, listed: RunList) -> dict[str, RunStatus]:
    """Return the statuses of the active runs that are available without a long wait."""
    found = {}
    for row in listed.runs:
        run = runs.known(row.name) if row.state in LASTING else None
        if run is not None and (status := await run.ask(run_status)) is not None:
            found[row.name] = status
    return found


def _add_documentation(app: FastAPI) -> None:
    @app.get("/docs", response_class=HTMLResponse, tags=["service"])
    async def docs() -> Response:
        """Return the documentation of this API as an HTML page."""
        return HTMLResponse(page(app.openapi()), headers={"Content-Security-Policy": POLICY})


PROBLEM = problems({503: "The runs cannot be read"})


def _service_routes(runs: Runs, changes: tuple[Change, ...]) -> APIRouter:
    router = APIRouter(tags=["service"])

    @router.get("/healthz")
    async def healthz() -> Health:
        """Report that the service is running."""
        return Health()

    @router.get("/readyz", responses=PROBLEM)
    async def readyz() -> Health:
        """Report that the service can read its runs."""
        await run_in_threadpool(runs.check)
        return Health()

    @router.get(API)
    async def about() -> About:
        """Return the service's version and capabilities."""
        return About(run=None if runs.only is None else runs.only.name, changes=changes)

    return router


def _runs_routes(runs: Runs) -> APIRouter:
    router = APIRouter(tags=["runs"])

    @router.get("/runs", response_model=RunList, responses=PROBLEM)
    async def list_runs() -> Response:
        """Return all runs, latest first."""
        listed = await run_in_threadpool(runs.list)
        return Response(listed.model_dump_json(), media_type="application/json")

    @router.get("/quantities")
    async def describe_quantities() -> Quantities:
        """Return the titles, units and formats of the headline figures of runs."""
        return quantities()

    return router
