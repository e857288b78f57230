"""Routes for write access: submit, cancel, stop, scale and resume. Each requires a token."""

# No postponed annotations: FastAPI cannot resolve the local names of an enclosing function.

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.concurrency import run_in_threadpool
from pydantic import Field

from aiperf_hpc.errors import RunDirectoryError, UsageError
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.service.answers.base import Answer
from aiperf_hpc.service.problem import conflict, problems
from aiperf_hpc.service.run_queue import Primaries, RunQueue
from aiperf_hpc.service.runs import FolderOfRuns, RunName, Runs
from aiperf_hpc.service.submission import Presets, Queue, Submission, Submitted, presets
from aiperf_hpc.untrusted.bounds import MOST_NODES


class Accepted(Answer):
    """Acceptance of a request; the run's status shows its progress."""

    run: str = Field(examples=["20261121-101500-imagenet-3f2a"])
    """Name of the run."""
    status: str = Field(examples=["/api/v1/runs/20261121-101500-imagenet-3f2a/status"])
    """URL of the run's status."""


class ScaleRequest(Answer):
    """New number of nodes of a running benchmark."""

    nodes: int = Field(ge=1, le=MOST_NODES, examples=[8])
    """Number of nodes; each replica spans `replica.nodes` nodes."""


RESPONSES = problems(
    {
        401: "A token is required",
        403: "This service is read-only",
        404: "The item does not exist",
        409: "The request conflicts with the current state",
        422: "The run cannot be executed, with the reason",
        429: "Too many submissions are waiting",
        503: "The runs cannot be read",
    }
)
Name = Annotated[str, Path(description="The submission's name.", examples=["000001"])]


def queue_routes(runs: FolderOfRuns, queue: RunQueue) -> APIRouter:
    """Return the routes of the queue of runs."""
    router = APIRouter(responses=RESPONSES, tags=["changes"])

    @router.get("/presets")
    def presets_() -> Presets:
        """Return the presets and the JSON Schema of the configuration, for a form."""
        return presets()

    @router.get("/queue")
    async def queue_() -> Queue:
        """Return all submissions: first the waiting ones in their start order, then the others."""
        return queue.submissions()

    @router.get("/queue/{submission}")
    async def submitted(submission: Name) -> Submitted:
        """Return one submission and its state."""
        return queue.submitted(submission)

    @router.post("/runs", status_code=202)
    async def submit(submission: Submission) -> Submitted:
        """Submit a run, which is checked as by `aiperf start` and then queued.

        Runs on this machine execute one at a time; runs for a scheduler are submitted to it
        immediately.
        """
        return await run_in_threadpool(queue.submit, submission)

    @router.post("/queue/{submission}/cancel")
    async def cancel(submission: Name) -> Submitted:
        """Cancel a waiting submission."""
        return await run_in_threadpool(queue.cancel, submission)

    @router.post("/runs/{run}/resume", status_code=202)
    async def resume(run: RunName) -> Accepted:
        """Resume an interrupted run, like `aiperf resume`."""
        return await _changed(runs, run, queue.resume)

    return router


def control_routes(runs: Runs, primaries: Primaries | RunQueue) -> APIRouter:
    """Return the routes that stop and scale a run."""
    router = APIRouter(responses=RESPONSES, tags=["changes"])

    @router.post("/runs/{run}/stop", status_code=202)
    async def stop(run: RunName) -> Accepted:
        """Stop a run gracefully, like `aiperf stop`: current steps complete, and the run is
        scored."""
        return await _changed(runs, run, primaries.stop)

    @router.post("/runs/{run}/scale", status_code=202)
    async def scale(run: RunName, wanted: ScaleRequest) -> Accepted:
        """Change the number of nodes of a running benchmark, like `aiperf scale`."""
        return await _changed(runs, run, lambda paths: primaries.scale(paths, wanted.nodes))

    return router


async def _changed(runs: Runs, run: str, change: Callable[[RunPaths], object]) -> Accepted:
    """Change a run; report operations that are currently impossible as a conflict."""
    try:
        await run_in_threadpool(lambda: change(runs.paths(run)))
    except RunDirectoryError:
        raise  # The run cannot be read, which is not a conflict.
    except UsageError as error:
        raise conflict(str(error)) from None
    return Accepted(run=run, status=f"/api/v1/runs/{run}/status")
