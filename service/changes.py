"""The routes that change something: submit, cancel, stop, scale, resume. Each needs a token."""

# Annotations are evaluated at once: FastAPI does not see a function's surroundings.

from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi.concurrency import run_in_threadpool
from pydantic import Field

from aiperf_hpc.errors import UsageError
from aiperf_hpc.service.answers.base import Answer
from aiperf_hpc.service.conductor import Conductor
from aiperf_hpc.service.primaries import Primaries
from aiperf_hpc.service.problem import MEDIA_TYPE, Problem, ProblemError
from aiperf_hpc.service.runs import FolderOfRuns
from aiperf_hpc.service.served_run import ServedRun
from aiperf_hpc.service.submission import Queue, Submission, Submitted
from aiperf_hpc.untrusted.bounds import MOST_NODES


class Accepted(Answer):
    """What was asked for will be done; the run's status says how far it is."""

    run: str = Field(examples=["20261121-101500-imagenet-3f2a"])
    """The run."""
    status: str = Field(examples=["/api/v1/runs/20261121-101500-imagenet-3f2a/status"])
    """Where its status is."""


class NodesWanted(Answer):
    """How many nodes a run that lasts is to have."""

    nodes: int = Field(ge=1, le=MOST_NODES, examples=[8])
    """How many nodes; a replica spans `replica.nodes` of them."""


def _said(description: str) -> dict[str, Any]:
    return {"model": Problem, "description": description, "content": {MEDIA_TYPE: {}}}


RESPONSES: dict[int | str, dict[str, Any]] = {
    401: _said("A token is needed"),
    403: _said("This service only reads"),
    404: _said("There is no such thing"),
    409: _said("It is not possible now"),
    422: _said("It cannot run, and why"),
    429: _said("Too many wait"),
    503: _said("The runs cannot be read"),
}
Run = Annotated[
    str, Path(description="The run's name in the list.", examples=["20261121-101500-imagenet-3f2a"])
]
Name = Annotated[str, Path(description="The submission's name.", examples=["000001"])]


def change_routes(runs: FolderOfRuns, conductor: Conductor) -> APIRouter:
    """Return the routes of what a conductor does."""
    router = APIRouter(responses=RESPONSES, tags=["changes"])

    @router.get("/queue")
    async def queue() -> Queue:
        """Return what was submitted: what waits first, in the order in which it will start."""
        return conductor.queue()

    @router.get("/queue/{submission}")
    async def submitted(submission: Name) -> Submitted:
        """Return one submission and what has become of it."""
        return conductor.submitted(submission)

    @router.post("/runs", status_code=202)
    async def submit(submission: Submission) -> Submitted:
        """Submit a run: it is checked as `aiperf start` does, and waits for its turn.

        One run at a time goes on on this machine; a scheduler is handed what it is to run at once.
        """
        return await run_in_threadpool(conductor.submit, submission)

    @router.post("/queue/{submission}/cancel")
    async def cancel(submission: Name) -> Submitted:
        """Let a submission that waits never start."""
        return await run_in_threadpool(conductor.cancel, submission)

    @router.post("/runs/{run}/stop", status_code=202)
    async def stop(run: Run) -> Accepted:
        """Stop a run in order, as `aiperf stop` does: the current steps end, and it is scored."""
        paths = await run_in_threadpool(runs.paths, run)
        await run_in_threadpool(conductor.stop, paths)
        return _accepted(run)

    @router.post("/runs/{run}/scale", status_code=202)
    async def scale(run: Run, wanted: NodesWanted) -> Accepted:
        """Give a run that lasts more nodes or fewer, as `aiperf scale` does; its status tells."""
        paths = await run_in_threadpool(runs.paths, run)
        await run_in_threadpool(conductor.scale, paths, wanted.nodes)
        return _accepted(run)

    @router.post("/runs/{run}/resume", status_code=202)
    async def resume(run: Run) -> Accepted:
        """Go on with a run whose primary died, as `aiperf resume` does."""
        paths = await run_in_threadpool(runs.paths, run)
        await run_in_threadpool(conductor.resume, paths)
        return _accepted(run)

    return router


def stop_routes(find: Callable[[str], ServedRun], primaries: Primaries) -> APIRouter:
    """Return the changes of a run that is served alone: to stop it, and to scale it."""
    router = APIRouter(responses=RESPONSES, tags=["changes"])

    @router.post("/runs/{run}/stop", status_code=202)
    async def stop(run: Run) -> Accepted:
        """Stop the run in order, as `aiperf stop` does: the current steps end, and it is scored."""
        live = find(run).live
        try:
            paths = await run_in_threadpool(live.uncached, lambda view: view.paths)
            await run_in_threadpool(primaries.stop, paths)
        except UsageError as error:
            raise ProblemError(HTTPStatus.CONFLICT, "conflict", str(error)) from None
        return _accepted(run)

    @router.post("/runs/{run}/scale", status_code=202)
    async def scale(run: Run, wanted: NodesWanted) -> Accepted:
        """Give the run more nodes or fewer, as `aiperf scale` does; its status tells."""
        live = find(run).live
        try:
            paths = await run_in_threadpool(live.uncached, lambda view: view.paths)
            await run_in_threadpool(primaries.scale, paths, wanted.nodes)
        except UsageError as error:
            raise ProblemError(HTTPStatus.CONFLICT, "conflict", str(error)) from None
        return _accepted(run)

    return router


def _accepted(run: str) -> Accepted:
    return Accepted(run=run, status=f"/api/v1/runs/{run}/status")
