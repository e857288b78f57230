"""The routes that change something: submit, cancel, stop, scale, resume. Each needs a token."""

# Annotations are evaluated at once: FastAPI does not see a function's surroundings.

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.concurrency import run_in_threadpool
from pydantic import Field

from aiperf_hpc.errors import UsageError
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.service.answers.base import Answer
from aiperf_hpc.service.primaries import Primaries
from aiperf_hpc.service.problem import conflict, problems
from aiperf_hpc.service.run_queue import RunQueue
from aiperf_hpc.service.runs import FolderOfRuns, Runs
from aiperf_hpc.service.submission import Queue, Submission, Submitted
from aiperf_hpc.untrusted.bounds import MOST_NODES


class Accepted(Answer):
    """The request was accepted; the run's status shows its progress."""

    run: str = Field(examples=["20261121-101500-imagenet-3f2a"])
    """The run."""
    status: str = Field(examples=["/api/v1/runs/20261121-101500-imagenet-3f2a/status"])
    """The address of its status."""


class NodesWanted(Answer):
    """The number of nodes that a running benchmark is to have."""

    nodes: int = Field(ge=1, le=MOST_NODES, examples=[8])
    """How many nodes; a replica spans `replica.nodes` of them."""


RESPONSES = problems(
    {
        401: "A token is required",
        403: "This service is read-only",
        404: "There is no such item",
        409: "It conflicts with the current state",
        422: "It cannot run, with the reason",
        429: "Too many submissions are waiting",
        503: "The runs cannot be read",
    }
)
Run = Annotated[
    str, Path(description="The run's name in the list.", examples=["20261121-101500-imagenet-3f2a"])
]
Name = Annotated[str, Path(description="The submission's name.", examples=["000001"])]


def queue_routes(runs: FolderOfRuns, queue: RunQueue) -> APIRouter:
    """Return the routes of a folder's queue of runs."""
    router = APIRouter(responses=RESPONSES, tags=["changes"])

    @router.get("/queue")
    async def queue_() -> Queue:
        """Return all submissions: those that wait in the order of their start, then the others."""
        return queue.submissions()

    @router.get("/queue/{submission}")
    async def submitted(submission: Name) -> Submitted:
        """Return one submission and its state."""
        return queue.submitted(submission)

    @router.post("/runs", status_code=202)
    async def submit(submission: Submission) -> Submitted:
        """Submit a run: it is checked as `aiperf start` does, and waits for its turn.

        One run at a time computes on this machine; a scheduler gets its runs at once.
        """
        return await run_in_threadpool(queue.submit, submission)

    @router.post("/queue/{submission}/cancel")
    async def cancel(submission: Name) -> Submitted:
        """Cancel a submission that waits."""
        return await run_in_threadpool(queue.cancel, submission)

    @router.post("/runs/{run}/resume", status_code=202)
    async def resume(run: Run) -> Accepted:
        """Resume a run whose primary died, as `aiperf resume` does."""
        return await _changed(runs, run, queue.resume)

    return router


def control_routes(runs: Runs, primaries: Primaries | RunQueue) -> APIRouter:
    """Return the routes that stop and scale a run."""
    router = APIRouter(responses=RESPONSES, tags=["changes"])

    @router.post("/runs/{run}/stop", status_code=202)
    async def stop(run: Run) -> Accepted:
        """Stop a run gracefully, as `aiperf stop` does: the current steps end, and it is scored."""
        return await _changed(runs, run, primaries.stop)

    @router.post("/runs/{run}/scale", status_code=202)
    async def scale(run: Run, wanted: NodesWanted) -> Accepted:
        """Change the number of nodes of a running benchmark, as `aiperf scale` does."""
        return await _changed(runs, run, lambda paths: primaries.scale(paths, wanted.nodes))

    return router


def _readable(runs: Runs, run: str) -> RunPaths:
    """Return where a run lies. That it cannot be read is no conflict, and raises."""
    paths = runs.paths(run)
    RunManifest.load(paths)
    return paths


async def _changed(runs: Runs, run: str, change: Callable[[RunPaths], object]) -> Accepted:
    """Change a run; what is not possible now is a conflict."""
    paths = await run_in_threadpool(_readable, runs, run)
    try:
        await run_in_threadpool(change, paths)
    except UsageError as error:
        raise conflict(str(error)) from None
    return Accepted(run=run, status=f"/api/v1/runs/{run}/status")
