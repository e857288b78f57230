"""Why a request has no answer: one body for all of it, by RFC 9457."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field

from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.trial import Value

MEDIA_TYPE = "application/problem+json"


class Fault(Value):
    """One thing that is wrong with a request."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    where: str = Field(examples=["query.limit"])
    """The part of the request and the name in it, with dots between."""
    message: str = Field(examples=["Input should be less than or equal to 1000"])
    """What is wrong with it."""


class Problem(Value):
    """Why a request has no answer (RFC 9457)."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    type: str = Field(examples=["urn:aiperf-hpc:problem:not-found"])
    """What kind of problem it is: `urn:aiperf-hpc:problem:` and a word for programs."""
    title: str = Field(examples=["Not Found"])
    """The kind of problem in words, the same for all of its kind."""
    status: int = Field(ge=400, le=599, examples=[404])
    """The HTTP status."""
    detail: str = Field(examples=["there is no run 'x'"])
    """What is wrong, where, and what to do: one line."""
    errors: tuple[Fault, ...] = ()
    """Each thing that is wrong with the request, where there are several."""


class ProblemError(AIPerfError):
    """A request that has no answer."""

    def __init__(
        self, status: HTTPStatus, kind: str, detail: str, errors: tuple[Fault, ...] = ()
    ) -> None:
        """Take the HTTP status, the last word of the problem's type, and what to say."""
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.errors = errors


def not_found(detail: str) -> ProblemError:
    """Return that something is not there."""
    return ProblemError(HTTPStatus.NOT_FOUND, "not-found", detail)


def problem_of(error: AIPerfError) -> Problem:
    """Return the body that says an error; any other than a ProblemError is one of reading a run."""
    if isinstance(error, ProblemError):
        status, kind, errors = error.status, error.kind, error.errors
    else:
        status, kind, errors = HTTPStatus.SERVICE_UNAVAILABLE, "unreadable", ()
    return Problem(
        type=f"urn:aiperf-hpc:problem:{kind}",
        title=status.phrase,
        status=status,
        detail=" ".join(str(error).split()),
        errors=errors,
    )


def problem_response(error: AIPerfError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the response to a request that has no answer."""
    problem = problem_of(error)
    again = {"Retry-After": "1"} if problem.status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    return JSONResponse(
        problem.model_dump(mode="json", exclude_defaults=True),
        status_code=problem.status,
        headers={**again, **(headers or {})},
        media_type=MEDIA_TYPE,
    )
