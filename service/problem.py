"""Error responses, all in the format of RFC 9457."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import Field
from starlette.exceptions import HTTPException

from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.streams import without_stand_ins
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.bounds import message_of

MEDIA_TYPE = "application/problem+json"


class Fault(Value):
    """One error in a request."""

    where: str = Field(examples=["query.limit"])
    """Location of the error: part of the request and name, separated by dots."""
    message: str = Field(examples=["Input should be less than or equal to 1000"])
    """Description of the error."""


class Problem(Value):
    """Error response (RFC 9457)."""

    type: str = Field(examples=["urn:aiperf-hpc:problem:not-found"])
    """Problem type: `urn:aiperf-hpc:problem:` and a keyword for programs."""
    title: str = Field(examples=["Not Found"])
    """Summary of the problem type."""
    status: int = Field(ge=400, le=599, examples=[404])
    """HTTP status code."""
    detail: str = Field(examples=["there is no run 'x'"])
    """Cause, location and remedy of the problem, in one line."""
    errors: tuple[Fault, ...] = ()
    """Individual errors in the request, if there are several."""


class ProblemError(AIPerfError):
    """Error that is returned as the response to a request."""

    def __init__(
        self, status: HTTPStatus, kind: str, detail: str, errors: tuple[Fault, ...] = ()
    ) -> None:
        """Create an error from the HTTP status, the last part of the problem type, and the
        detail."""
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.errors = errors


def not_found(detail: str) -> ProblemError:
    """Return the error for a missing resource."""
    return ProblemError(HTTPStatus.NOT_FOUND, "not-found", detail)


def conflict(detail: str) -> ProblemError:
    """Return the error for an operation that is currently impossible."""
    return ProblemError(HTTPStatus.CONFLICT, "conflict", detail)


def problems(descriptions: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    """Return the declared responses of a route for these error statuses."""
    return {
        status: {"model": Problem, "description": text, "content": {MEDIA_TYPE: {}}}
        for status, text in descriptions.items()
    }


def problem_of(error: AIPerfError) -> Problem:
    """Return the response body of an error; all but ProblemError are failures to read a run."""
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
    """Return the response for an error."""
    problem = problem_of(error)
    again = {"Retry-After": "1"} if problem.status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    return JSONResponse(
        problem.model_dump(mode="json", exclude_defaults=True),
        status_code=problem.status,
        headers={**again, **(headers or {})},
        media_type=MEDIA_TYPE,
    )


def add_problem_handlers(app: FastAPI) -> None:
    """Register handlers that convert every error to a Problem response."""
    app.add_exception_handler(AIPerfError, _refused)
    app.add_exception_handler(Exception, _failed)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_exception_handler(RequestValidationError, _invalid)


def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, AIPerfError)  # noqa: S101 -- for the type checker
    return problem_response(error)


def _failed(_: Request, error: Exception) -> Response:
    """Hide the details of an internal error; the server prints them."""
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    detail = "an unexpected error; see the output of the service"
    return problem_response(ProblemError(status, "unexpected", detail))


def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 -- for the type checker
    status = HTTPStatus(error.status_code)
    kind = status.phrase.lower().replace(" ", "-")
    detail = {
        HTTPStatus.NOT_FOUND: "no such path; /openapi.json lists all paths",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{request.method} is not allowed for this path",
    }.get(status, str(error.detail))
    return problem_response(ProblemError(status, kind, detail), error.headers)


def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 -- for the type checker
    faults = tuple(_fault(each) for each in error.errors())
    detail = "; ".join(f"{fault.where}: {fault.message}" for fault in faults[:3])
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    return problem_response(ProblemError(status, "invalid", detail, faults))


def _fault(error: Mapping[str, Any]) -> Fault:
    where = ".".join(map(str, error["loc"]))
    return Fault(where=without_stand_ins(where), message=without_stand_ins(message_of(error)))
