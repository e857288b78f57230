"""Access control, which is checked before the requested resource is looked up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aiperf_hpc.service.endpoint import Tokens, is_loopback
from aiperf_hpc.service.problem import ProblemError, problem_response

READING = ("GET", "HEAD")
PUBLIC = ("/", "/healthz", "/docs", "/openapi.json")
"""Paths that are equal for every service and reveal nothing about its runs."""
PUBLIC_FOLDER = "/assets/"
MOST_BYTES = 1_000_000
"""Maximum size of a request body in bytes."""
LONGEST = 200
"""Maximum number of logged characters of a URL."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Access policy of a service."""

    tokens: Tokens | None = None
    """Tokens for write access; None if the service is read-only."""
    open_reading: bool = True
    """Whether read access needs no token."""
    host: str = ""
    """Host name of the listening address, accepted in requests besides the names of this
    machine."""

    def refusal(self, method: str, path: str, headers: Headers) -> ProblemError | None:
        """Return the reason to reject a request, or None if it is allowed."""
        shown = _token(headers)
        if shown is not None and self.tokens is not None and self.tokens.accept(shown):
            return None
        if method in READING and (path in PUBLIC or path.startswith(PUBLIC_FOLDER)):
            return None
        if method in READING and self.open_reading:
            return self._of_host(headers.get("host", ""))
        if self.tokens is None:
            return ProblemError(
                HTTPStatus.FORBIDDEN,
                "read-only",
                "this service is read-only; start it with --token-file to allow changes",
            )
        what = "unknown token" if shown is not None else "a token is required"
        return ProblemError(
            HTTPStatus.UNAUTHORIZED, "token-needed", f"{what}: Authorization: Bearer TOKEN"
        )

    def _of_host(self, asked: str) -> ProblemError | None:
        """Reject cross-site requests of browsers and requests for another host name."""
        try:
            name = urlsplit(f"//{asked}").hostname or ""
        except ValueError:
            name = ""
        if is_loopback(name) or (name and name == self.host):
            return None
        return ProblemError(
            HTTPStatus.FORBIDDEN,
            "host-not-allowed",
            "address this service as localhost or 127.0.0.1, or send a token",
        )


def _token(headers: Headers) -> str | None:
    """Return the token of a request, or an empty string if it has none."""
    shown = headers.get("authorization")
    if shown is None:
        return None
    scheme, _, token = shown.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class Guard:
    """Middleware that enforces the access policy and logs rejected requests and all changes."""

    def __init__(self, app: ASGIApp, policy: Policy, log: Callable[[str], None]) -> None:
        self._app = app
        self._policy = policy
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        refusal = self._policy.refusal(method, path, Headers(scope=scope))
        if refusal is not None:
            self._log(_line(scope, refusal.status, str(refusal)))
            await _refuse(refusal)(scope, receive, send)
        elif method in READING:
            await self._app(scope, receive, send)
        else:
            logging = reporting(send, lambda status: self._log(_line(scope, status, "")))
            await self._app(scope, receive, logging)


def reporting(send: Send, report: Callable[[int], None]) -> Send:
    """Return a function that sends a response and reports its status."""

    async def reported(message: Message) -> None:
        if message["type"] == "http.response.start":
            report(message["status"])
        await send(message)

    return reported


class BodyLimit:
    """Middleware that rejects a request with too large a body before reading all of it."""

    def __init__(self, app: ASGIApp, most: int = MOST_BYTES) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in READING:
            await self._app(scope, receive, send)
            return
        messages, size = list[Message](), 0
        while True:
            message = await receive()
            messages.append(message)
            size += len(message.get("body", b""))
            if size > self._most:
                await _refuse(_too_long(self._most))(scope, receive, send)
                return
            if not message.get("more_body", False):
                break
        left = iter(messages)

        async def again() -> Message:
            return next(left, None) or await receive()

        await self._app(scope, again, send)


def _too_long(most: int) -> ProblemError:
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return ProblemError(status, "too-long", f"a request body has at most {most} bytes")


def _refuse(refusal: ProblemError) -> ASGIApp:
    needs_token = refusal.status == HTTPStatus.UNAUTHORIZED
    return problem_response(refusal, {"WWW-Authenticate": "Bearer"} if needs_token else None)


def _line(scope: Scope, status: int, why: str) -> str:
    """Return a request as one log line without control characters."""
    client = scope.get("client")
    who = client[0] if client else "unknown"
    path = scope["path"].encode("unicode_escape").decode()[:LONGEST]
    line = f"service: {who} {scope['method'][:10]} {path}: {status}"
    return f"{line}, {why}" if why else line
