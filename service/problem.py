"""Why a request has no answer: one body for all of it, by RFC 9457."""

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
    """One thing that is wrong with a request."""

    where: str = Field(examples=["query.limit"])
    """The part of the request and the name in it, with dots between."""
    message: str = Field(examples=["Input should be less than or equal to 1000"])
    """What is wrong with it."""


class Problem(Value):
    """Why a request has no answer (RFC 9457)."""

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


def conflict(detail: str) -> ProblemError:
    """Return that something is not possible now."""
    return ProblemError(HTTPStatus.CONFLICT, "conflict", detail)


def problems(descriptions: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    """Return the responses of a route that has problems of these statuses."""
    return {
        status: {"model": Problem, "description": text, "content": {MEDIA_TYPE: {}}}
        for status, text in descriptions.items()
    }


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


def add_problem_handlers(app: FastAPI) -> None:
    """Have an application answer every error with a problem."""
    app.add_exception_handler(AIPerfError, _refused)
    app.add_exception_handler(Exception, _failed)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_exception_handler(RequestValidationError, _invalid)


def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, AIPerfError)  # noqa: S101 -- for the type checker
    return problem_response(error)


def _failed(_: Request, error: Exception) -> Response:
    """Reveal no more than that; the server prints the error."""
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    detail = "an unexpected error; the service's own output has it"
    return problem_response(ProblemError(status, "unexpected", detail))


def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 -- for the type checker
    status = HTTPStatus(error.status_code)
    kind = status.phrase.lower().replace(" ", "-")
    detail = {
        HTTPStatus.NOT_FOUND: "there is nothing at this address; /openapi.json lists the addresses",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{request.method} is not possible at this address",
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
