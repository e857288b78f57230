"""The routes that read one run. Each asks one question; the answers are in ``answers``."""

# Annotations are evaluated at once: FastAPI does not see a function's surroundings.

from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse
from pydantic import BaseModel

from aiperf_hpc.errors import RunDirectoryError
from aiperf_hpc.results.compare.comparison import Comparison, compare
from aiperf_hpc.results.views.run_summary import RunDetails
from aiperf_hpc.results.views.run_view import RunStatus, RunView
from aiperf_hpc.results.views.telemetry import Telemetry
from aiperf_hpc.service.answers.base import Loading
from aiperf_hpc.service.answers.candidates import (
    Candidates,
    CandidatesQuestion,
    CandidateState,
    Tree,
    TreeQuestion,
)
from aiperf_hpc.service.answers.events import EventKind, Events, EventsQuestion
from aiperf_hpc.service.answers.files import FileQuestion, Files, files
from aiperf_hpc.service.answers.in_flight import InFlight, InFlightQuestion
from aiperf_hpc.service.answers.machines import (
    Configuration,
    ReplicaDetail,
    ReplicaQuestion,
    Replicas,
    configuration,
    machine,
    replicas,
)
from aiperf_hpc.service.answers.score import Score, score
from aiperf_hpc.service.answers.telemetry import TelemetryQuestion
from aiperf_hpc.service.answers.time import Time, time
from aiperf_hpc.service.answers.trials import (
    TrialDetail,
    TrialOrder,
    TrialQuestion,
    Trials,
    TrialsQuestion,
)
from aiperf_hpc.service.problem import MEDIA_TYPE, Problem, ProblemError
from aiperf_hpc.service.runs import Runs
from aiperf_hpc.service.served_run import ServedRun
from aiperf_hpc.service.stream import EventStream, run_stream
from aiperf_hpc.system.summary import MachineSummary
from aiperf_hpc.trial import RoundPhase, TrialState

MOST = 10_000
"""How many of many are given at once, at most."""
SANDBOX = "sandbox allow-scripts; default-src 'unsafe-inline' data:"
"""What a report's page may do: it is shown, and reaches nothing of the service."""


RESPONSES: dict[int | str, dict[str, Any]] = {
    202: {"model": Loading, "description": "The records are being read; ask again in a second"},
    404: {"model": Problem, "description": "There is no such thing", "content": {MEDIA_TYPE: {}}},
    422: {"model": Problem, "description": "The question is invalid", "content": {MEDIA_TYPE: {}}},
    503: {"model": Problem, "description": "The run cannot be read", "content": {MEDIA_TYPE: {}}},
}

Limit = Annotated[int, Query(ge=1, le=MOST, description="How many are given at most.")]
Offset = Annotated[int, Query(ge=0, description="How many are passed over.")]
Replica = Annotated[str | None, Query(description="Those of one replica alone.", examples=["r0"])]
Find = Callable[..., Any]
T = TypeVar("T")


def run_routes(runs: Runs) -> APIRouter:
    """Return the routes below a run's address."""

    async def found(
        run: Annotated[
            str,
            Path(
                description="The run's name in the list.",
                examples=["20261121-101500-imagenet-3f2a"],
            ),
        ],
    ) -> ServedRun:
        known = runs.known(run)
        return await run_in_threadpool(runs.find, run) if known is None else known

    router = _status_routes(found, runs)
    _add_details(router, found, runs)
    return router


def only_run_routes(run: ServedRun) -> APIRouter:
    """Return the routes of a run that is served alone, by which it has always answered."""

    async def found() -> ServedRun:
        return run

    return _status_routes(found, None)


def _status_routes(found: Find, runs: Runs | None) -> APIRouter:
    router = APIRouter(responses=RESPONSES)

    @router.get("/status", response_model=RunStatus)
    async def status(run: Annotated[ServedRun, Depends(found)]) -> Response:
        """Return what the run does now."""
        return await _answer(run, RunView.status, runs)

    @router.get("/score", response_model=Score)
    async def score_(run: Annotated[ServedRun, Depends(found)]) -> Response:
        """Return the score so far, and at every interval."""
        return await _answer(run, score, runs)

    @router.get("/trials", response_model=Trials)
    async def trials(
        run: Annotated[ServedRun, Depends(found)],
        state: Annotated[TrialState | None, Query(description="Those in a state.")] = None,
        replica: Replica = None,
        phase: Annotated[RoundPhase | None, Query(description="Those of a phase.")] = None,
        graph: Annotated[str | None, Query(description="Those of a graph, by its hash.")] = None,
        parent: Annotated[str | None, Query(description="Those grown from a trial.")] = None,
        sort: Annotated[TrialOrder, Query(description="By what.")] = TrialOrder.STARTED,
        descending: Annotated[bool, Query(description="The greatest first.")] = False,
        limit: Limit = 100,
        offset: Offset = 0,
    ) -> Response:
        """Return some of the trials: filtered, sorted, and by pages."""
        question = TrialsQuestion(
            state, replica, phase, graph, parent, sort, descending, limit, offset
        )
        return await _answer(run, question, runs)

    return router


def _add_details(router: APIRouter, found: Find, runs: Runs) -> None:
    @router.get("/trials/{trial}", response_model=TrialDetail)
    async def trial(
        run: Annotated[ServedRun, Depends(found)],
        trial: Annotated[str, Path(description="The trial's name.", examples=["r0-t001"])],
    ) -> Response:
        """Return one trial with its learning curve and its layers."""
        return await _answer(run, TrialQuestion(trial), runs)

    @router.get("/in-flight", response_model=InFlight)
    async def in_flight(
        run: Annotated[ServedRun, Depends(found)], limit: Limit = 100, offset: Offset = 0
    ) -> Response:
        """Return some of the trials that are under way: how far each is, and its time left."""
        return await _answer(run, InFlightQuestion(limit, offset), runs)

    @router.get("/candidates", response_model=Candidates)
    async def candidates(
        run: Annotated[ServedRun, Depends(found)],
        state: Annotated[CandidateState | None, Query(description="Those in a state.")] = None,
        replica: Replica = None,
        limit: Limit = 100,
        offset: Offset = 0,
    ) -> Response:
        """Return some of the networks that the search has grown, the latest first."""
        return await _answer(run, CandidatesQuestion(state, replica, limit, offset), runs)

    @router.get("/tree", response_model=Tree)
    async def tree(
        run: Annotated[ServedRun, Depends(found)],
        limit: Annotated[
            int, Query(ge=1, le=MOST, description="How many of the latest trials it has.")
        ] = 2000,
    ) -> Response:
        """Return the tree of networks: the latest trials and all that they grew from."""
        return await _answer(run, TreeQuestion(limit), runs)

    @router.get("/replicas", response_model=Replicas)
    async def replicas_(run: Annotated[ServedRun, Depends(found)]) -> Response:
        """Return all replicas now."""
        return await _answer(run, replicas, runs)

    @router.get("/replicas/{replica}", response_model=ReplicaDetail)
    async def replica(
        run: Annotated[ServedRun, Depends(found)],
        replica: Annotated[str, Path(description="The replica's name.", examples=["r0"])],
    ) -> Response:
        """Return one replica with its machine and where its time went."""
        return await _answer(run, ReplicaQuestion(replica), runs)

    @router.get("/machine", response_model=MachineSummary)
    async def machine_(run: Annotated[ServedRun, Depends(found)]) -> Response:
        """Return the machine that the run has: equal nodes together."""
        return await _answer(run, machine, runs)

    @router.get("/time", response_model=Time)
    async def time_(run: Annotated[ServedRun, Depends(found)]) -> Response:
        """Return where the time of all replicas went, so far."""
        return await _answer(run, time, runs)

    @router.get("/telemetry", response_model=Telemetry)
    async def telemetry(
        run: Annotated[ServedRun, Depends(found)],
        host: Annotated[
            str | None, Query(description="The node whose course is given too.", examples=["n01"])
        ] = None,
        points: Annotated[
            int, Query(ge=1, le=MOST, description="How many points of it, at most: the latest.")
        ] = 240,
    ) -> Response:
        """Return what the nodes do and draw: utilisation, memory, power, energy."""
        return await _answer(run, TelemetryQuestion(host, points), runs)

    @router.get("/configuration", response_model=Configuration)
    async def configuration_(run: Annotated[ServedRun, Depends(found)]) -> Response:
        """Return what the run was asked to do, by which versions."""
        return await _answer(run, configuration, runs)

    _add_events(router, found, runs)
    _add_files(router, found, runs)


def _add_events(router: APIRouter, found: Find, runs: Runs) -> None:
    @router.get("/events", response_model=Events)
    async def events(
        run: Annotated[ServedRun, Depends(found)],
        after: Annotated[
            int | None,
            Query(ge=0, description="The first ones after this number. Default: the latest."),
        ] = None,
        kind: Annotated[EventKind | None, Query(description="Those about one thing.")] = None,
        who: Annotated[str | None, Query(description="Those of a replica or a trial.")] = None,
        limit: Limit = 100,
    ) -> Response:
        """Return what happened, in the order in which it became known."""
        question = EventsQuestion(run.events, after, kind, who, limit)
        return await _answer(run, question, runs)

    @router.get(
        "/events/stream",
        status_code=200,
        response_class=EventStream,
        responses={
            200: {"description": "Server-sent events", "content": {"text/event-stream": {}}}
        },
    )
    async def stream(
        request: Request,
        run: Annotated[ServedRun, Depends(found)],
        after: Annotated[
            int | None,
            Query(
                ge=0, description="The number of the last event that is known; or Last-Event-ID."
            ),
        ] = None,
        seconds: Annotated[
            float, Query(ge=0.5, le=60.0, description="Seconds between two looks.")
        ] = 1.0,
    ) -> Response:
        """Send server-sent events as long as the client reads them.

        `status` has a RunStatus whenever it is another one. `happened` has a RunEvent, whose number
        is the event's id. `loading` has a Loading; `problem` has a Problem when the run cannot be
        read, after which `status` says that it can again. Every 15 seconds there is a comment.
        """
        last = request.headers.get("Last-Event-ID", "")
        known = int(last) if last.isascii() and last.isdecimal() and len(last) < 19 else after
        return EventStream(
            run_stream(run, known, seconds),
            request.app.state.ending,
            open_streams=request.app.state.streams,
        )


def _add_files(router: APIRouter, found: Find, runs: Runs) -> None:
    @router.get("/files", response_model=Files)
    async def files_(run: Annotated[ServedRun, Depends(found)]) -> Response:
        """Return the names of the report's files, and run.yaml."""
        return await _answer(run, files, runs)

    @router.get(
        "/files/{file}",
        status_code=200,
        response_class=FileResponse,
        responses={200: {"description": "The file", "content": {"*/*": {}}}},
    )
    async def file(
        run: Annotated[ServedRun, Depends(found)],
        file: Annotated[str, Path(description="The file's name.", examples=["report.html"])],
    ) -> Response:
        """Return a file of the report. Its scripts reach nothing of the service."""
        there = await _asked(run, FileQuestion(file), runs)
        if there is None:
            return _loading(run)
        headers = {"Content-Security-Policy": SANDBOX, "X-Content-Type-Options": "nosniff"}
        return FileResponse(there.path, media_type=there.file.media_type, headers=headers)


async def _answer(
    run: ServedRun, question: Callable[[RunView], BaseModel], runs: Runs | None
) -> Response:
    """Answer at once where that is possible; else wait for a moment, so that others need not."""
    try:
        said = await run.text(question)
    except RunDirectoryError:
        if runs is not None:
            await run_in_threadpool(runs.lost, run)
        raise
    if said is None:
        return _loading(run)
    return Response(said.body, media_type="application/json", headers={"Age": str(round(said.age))})


def compare_routes(runs: Runs) -> APIRouter:
    """Return the route that sets several runs beside each other."""
    router = APIRouter(responses=RESPONSES, tags=["runs"])

    @router.get("/compare", response_model=Comparison)
    async def compare_(
        run: Annotated[
            list[str],
            Query(
                min_length=2,
                max_length=20,
                description="The runs' names; the first is what others are compared with.",
            ),
        ],
    ) -> Response:
        """Return what several runs reached, in what they differ, and whether they compare."""
        if len(set(run)) < len(run):
            raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid", "a run is named twice")
        found: dict[str, list[RunDetails]] = {}
        for name in run:
            served = runs.known(name)
            if served is None:
                served = await run_in_threadpool(runs.find, name)
            if (told := await _asked(served, RunDetails.of, runs)) is None:
                return _loading(served)
            found[name] = [told.model_copy(update={"name": name})]
        return Response(compare(found).model_dump_json(), media_type="application/json")

    return router


async def _asked(run: ServedRun, question: Callable[[RunView], T], runs: Runs) -> T | None:
    try:
        return await run.ask(question)
    except RunDirectoryError:
        await run_in_threadpool(runs.lost, run)
        raise


def _loading(run: ServedRun) -> Response:
    return Response(
        run.loading().model_dump_json(),
        status_code=HTTPStatus.ACCEPTED,
        media_type="application/json",
        headers={"Retry-After": "1"},
    )
