"""Routes for read access to runs. Each evaluates one query from ``answers``."""

# No postponed annotations: FastAPI cannot resolve the local names of an enclosing function.

from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Annotated, NamedTuple, TypeVar, get_type_hints

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse
from pydantic import BaseModel

from aiperf_hpc.errors import RunDirectoryError
from aiperf_hpc.results.comparison import Comparison, compare
from aiperf_hpc.results.views.run_catalog import RunDetails
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.service.answers import candidates, machines, progress, trials
from aiperf_hpc.service.answers.base import Limit, Loading, Question
from aiperf_hpc.service.answers.events import Events, EventsQuery, EventsQuestion
from aiperf_hpc.service.answers.files import FileQuestion, files
from aiperf_hpc.service.problem import ProblemError, problems
from aiperf_hpc.service.runs import RunName, Runs
from aiperf_hpc.service.served_run import ServedRun
from aiperf_hpc.service.stream import EventStream, run_stream
from aiperf_hpc.untrusted.bounds import Count

SANDBOX = "sandbox allow-scripts; default-src 'unsafe-inline' data:"
"""Content security policy of a report's page, which isolates it from the service."""


RESPONSES = {
    202: {"model": Loading, "description": "The records are being read; retry in a second"},
    **problems(
        {
            404: "The item does not exist",
            422: "The query is invalid",
            503: "The run cannot be read",
        }
    ),
}
ReplicaName = Annotated[str, Path(description="The replica's name.", examples=["r0"])]
T = TypeVar("T")


class Route(NamedTuple):
    """A route that evaluates one query about a run and has the query's description."""

    path: str
    name: str
    question: Callable[[RunView], BaseModel] | type[Question]
    """A query, or the class of a query with parameters."""


STATUS_ROUTES = (
    Route("/status", "status", progress.status),
    Route("/score", "score_", progress.ScoreQuestion),
    Route("/trials", "trials", trials.TrialsQuestion),
)
"""Routes that also exist without the run's name if the service has a single run."""
ROUTES = (
    *STATUS_ROUTES,
    Route("/in-flight", "in_flight", trials.InFlightQuestion),
    Route("/candidates", "candidates", candidates.CandidatesQuestion),
    Route("/tree", "tree", candidates.TreeQuestion),
    Route("/replicas", "replicas_", machines.replicas),
    Route("/machine", "machine_", machines.machine),
    Route("/time", "time_", progress.time),
    Route("/telemetry", "telemetry", machines.TelemetryQuestion),
    Route("/configuration", "configuration_", machines.configuration),
    Route("/files", "files_", files),
)


class Reader(NamedTuple):
    """Evaluates queries for the routes below the URL of a run."""

    run: ServedRun
    runs: Runs

    async def answer(self, question: Callable[[RunView], BaseModel]) -> Response:
        """Answer immediately if possible; otherwise wait without blocking other requests."""
        found = await self._found(self.run.text(question))
        if found is None:
            return _loading(self.run)
        headers = {"Age": str(round(found.age))}
        return Response(found.body, media_type="application/json", headers=headers)

    async def ask(self, question: Callable[[RunView], T]) -> T | None:
        """Return the answer, or None while the run is being read."""
        return await self._found(self.run.ask(question))

    async def _found(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except RunDirectoryError:
            await run_in_threadpool(self.runs.lost, self.run)
            raise


def run_routes(runs: Runs) -> APIRouter:
    """Return the routes below the URL of a run."""

    async def reader(run: RunName) -> Reader:
        return await _reader_of(run, runs)

    router = APIRouter(responses=RESPONSES)
    _add_routes(router, reader, ROUTES)
    _add_items(router, reader)
    _add_events(router, reader)
    return router


async def _reader_of(run: str, runs: Runs) -> Reader:
    known = runs.known(run)
    return Reader(await run_in_threadpool(runs.find, run) if known is None else known, runs)


def only_run_routes(run: ServedRun, runs: Runs) -> APIRouter:
    """Return the routes of a single served run without its name, for compatibility."""

    async def reader() -> Reader:
        return Reader(run, runs)

    router = APIRouter(responses=RESPONSES)
    _add_routes(router, reader, STATUS_ROUTES)
    return router


Dependency = Callable[..., Awaitable[Reader]]


def _add_routes(router: APIRouter, reader: Dependency, routes: Sequence[Route]) -> None:
    for path, name, question in routes:
        if isinstance(question, type):
            endpoint, answer = _with_parameters(question, reader), question.__call__
        else:
            endpoint, answer = _without_parameters(question, reader), question
        router.add_api_route(
            path,
            endpoint,
            name=name,
            response_model=get_type_hints(answer)["return"],
            description=question.__doc__,
        )


def _without_parameters(
    question: Callable[[RunView], BaseModel], reader: Dependency
) -> Callable[..., Awaitable[Response]]:
    async def answer(reader: Annotated[Reader, Depends(reader)]) -> Response:
        return await reader.answer(question)

    return answer


def _with_parameters(
    question: type[Question], reader: Dependency
) -> Callable[..., Awaitable[Response]]:
    async def answer(
        reader: Annotated[Reader, Depends(reader)],
        question: Annotated[question, Query()],  # type: ignore[valid-type]
    ) -> Response:
        return await reader.answer(question)

    return answer


def _add_items(router: APIRouter, reader: Dependency) -> None:
    @router.get("/trials/{trial}", response_model=trials.TrialDetail)
    async def trial(
        reader: Annotated[Reader, Depends(reader)],
        trial: Annotated[str, Path(description="The trial's name.", examples=["r0-t001"])],
    ) -> Response:
        """Return one trial with its learning curve and its layers."""
        return await reader.answer(trials.TrialQuestion(trial))

    @router.get("/replicas/{replica}", response_model=machines.ReplicaDetail)
    async def replica(
        reader: Annotated[Reader, Depends(reader)],
        replica: ReplicaName,
    ) -> Response:
        """Return one replica with its host and its time split."""
        return await reader.answer(machines.ReplicaQuestion(replica))

    @router.get("/replicas/{replica}/output", response_model=machines.ReplicaOutput)
    async def output(
        reader: Annotated[Reader, Depends(reader)],
        replica: ReplicaName,
        limit: Annotated[Limit, Query(description="Maximum number of returned lines.")] = 200,
    ) -> Response:
        """Return the last lines of a replica's output, from at most its last 256 KiB."""
        return await reader.answer(machines.OutputQuestion(replica, limit))

    @router.get(
        "/files/{file}",
        status_code=200,
        response_class=FileResponse,
        responses={200: {"description": "The file", "content": {"*/*": {}}}},
    )
    async def file(
        reader: Annotated[Reader, Depends(reader)],
        file: Annotated[str, Path(description="The file's name.", examples=["report.html"])],
    ) -> Response:
        """Return a file of the report. Its scripts are isolated from the service."""
        found = await reader.ask(FileQuestion(file))
        if found is None:
            return _loading(reader.run)
        headers = {"Content-Security-Policy": SANDBOX, "X-Content-Type-Options": "nosniff"}
        return FileResponse(found.path, media_type=found.file.media_type, headers=headers)


def _add_events(router: APIRouter, reader: Dependency) -> None:
    @router.get("/events", response_model=Events)
    async def events(
        reader: Annotated[Reader, Depends(reader)], question: Annotated[EventsQuery, Query()]
    ) -> Response:
        """Return the events of a run, in the order in which they were observed."""
        return await reader.answer(EventsQuestion(reader.run.events, question))

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
        reader: Annotated[Reader, Depends(reader)],
        after: Annotated[
            Count | None,
            Query(description="Number of the last known event; alternatively, Last-Event-ID."),
        ] = None,
        seconds: Annotated[
            float, Query(ge=0.5, le=60.0, description="Polling interval in seconds.")
        ] = 1.0,
        summary: Annotated[
            bool, Query(description="Leave replicas and nodes out of `status`.")
        ] = False,
    ) -> Response:
        """Send server-sent events as long as the client reads them.

        `status` has a RunStatus whenever it changes. `happened` has a RunEvent, whose number
        is the event's id. `loading` has a Loading; `problem` has a Problem when the run cannot be
        read, after which `status` reports that it can again. A comment is sent every 15 seconds.
        """
        last = request.headers.get("Last-Event-ID", "")
        known = int(last) if last.isascii() and last.isdecimal() and len(last) < 19 else after
        question = progress.summary if summary else progress.status
        return EventStream(
            run_stream(reader.run, known, seconds, question),
            request.app.state.ending,
            open_streams=request.app.state.streams,
        )


def compare_routes(runs: Runs) -> APIRouter:
    """Return the route that compares several runs."""
    router = APIRouter(responses=RESPONSES, tags=["runs"])

    @router.get("/compare", response_model=Comparison)
    async def compare_(
        run: Annotated[
            list[str],
            Query(
                min_length=2,
                max_length=20,
                description="The names of the runs; the others are compared with the first one.",
            ),
        ],
    ) -> Response:
        """Return the results and differences of several runs, and whether their scores are
        comparable."""
        if len(set(run)) < len(run):
            raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid", "a run is named twice")
        found: dict[str, list[RunDetails]] = {}
        for name in run:
            reader = await _reader_of(name, runs)
            if (details := await reader.ask(RunDetails.of)) is None:
                return _loading(reader.run)
            found[name] = [details.model_copy(update={"name": name})]
        return Response(compare(found).model_dump_json(), media_type="application/json")

    return router


def _loading(run: ServedRun) -> Response:
    return Response(
        run.loading().model_dump_json(),
        status_code=HTTPStatus.ACCEPTED,
        media_type="application/json",
        headers={"Retry-After": "1"},
    )
