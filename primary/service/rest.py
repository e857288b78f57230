"""A run over REST while it lasts: read-only, and the same numbers as the status and the report.

The handlers are thin: each asks one question of a ``RunView``. Many clients cost no more than
one, because the journals are read, and each question answered, at most once a second, and less
often where that takes long (``cached_view.py``). The header ``Age`` says how old an answer is.
"""

from __future__ import annotations

import contextlib
import errno
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import uvicorn
from fastapi import FastAPI, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from aiperf_hpc import __version__
from aiperf_hpc.errors import AIPerfError, UsageError
from aiperf_hpc.primary.monitor.cached_view import CachedView
from aiperf_hpc.primary.monitor.run_view import RunStatus, RunView, ScoreStatus, TrialStatus
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import TrialState, Value

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 8765
START_SECONDS = 10.0
STOP_SECONDS = 5.0


class Health(Value):
    """The service answers, and can read its run."""

    status: Literal["ok"] = "ok"
    version: str = __version__


class Score(Value):
    """The score so far."""

    run_id: str
    final: bool
    """Whether the run has ended; while it lasts, ``score`` is that at the last record."""
    interval_hours: float
    score: ScoreStatus
    points: tuple[ScoreStatus, ...]
    """The score at every interval, and at the end or the last record so far."""


class Trials(Value):
    """Some of the trials that match, in order of their start."""

    total: int
    """The number of all trials that match."""
    offset: int
    limit: int
    trials: tuple[TrialStatus, ...]


class Failure(Value):
    """Why there is no answer."""

    error: str


def _health(_: RunView) -> Health:
    return Health()


def _score(view: RunView) -> Score:
    return Score(
        run_id=view.manifest.run_id,
        final=view.history.end_utc is not None,
        interval_hours=view.manifest.config.score.interval_hours,
        score=ScoreStatus.of(view.final()),
        points=tuple(view.score()),
    )


@dataclass(frozen=True, slots=True)
class _Page:
    """The question for some of the trials."""

    state: TrialState | None
    replica: str | None
    limit: int
    offset: int

    def __call__(self, view: RunView) -> Trials:
        found = [
            trial
            for trial in view.ordered_trials()
            if (self.state is None or trial.state == self.state)
            and (self.replica is None or trial.replica == self.replica)
        ]
        page = tuple(view.trial_statuses(found[self.offset : self.offset + self.limit]))
        return Trials(total=len(found), offset=self.offset, limit=self.limit, trials=page)


def create_app(live: CachedView) -> FastAPI:
    """Return the application. Until its run can be read, it answers 503 with the reason."""
    # The usual pages of documentation load scripts from elsewhere, which a cluster cannot.
    app = FastAPI(
        title="AIPerf-HPC",
        summary="A run while it lasts",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        responses={503: {"model": Failure, "description": "The run cannot be read"}},
    )
    app.add_exception_handler(AIPerfError, _no_answer)

    @app.get("/healthz", response_model=Health)
    async def healthz() -> Response:
        """Say that the service is there and can read its run."""
        return await _answer(live, _health)

    @app.get("/api/v1/status", response_model=RunStatus)
    async def status() -> Response:
        """Return what the run does now."""
        return await _answer(live, RunView.status)

    @app.get("/api/v1/score", response_model=Score)
    async def score() -> Response:
        """Return the score so far, and at every interval."""
        return await _answer(live, _score)

    @app.get("/api/v1/trials", response_model=Trials)
    async def trials(
        state: TrialState | None = None,
        replica: str | None = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
        offset: Annotated[int, Query(ge=0)] = 0,
    ) -> Response:
        """Return the trials, of one state or one replica if asked for."""
        return await _answer(live, _Page(state, replica, limit, offset))

    return app


async def _answer(live: CachedView, question: Callable[[RunView], BaseModel]) -> Response:
    """Answer at once where that is possible; else wait in a thread, so that others need not."""
    said = live.text_at_hand(question)
    if said is None:
        said = await run_in_threadpool(live.text, question)
    return Response(said.body, media_type="application/json", headers={"Age": str(round(said.age))})


def _no_answer(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse(
        Failure(error=str(error)).model_dump(), status_code=503, headers={"Retry-After": "1"}
    )


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``, ``:PORT``, ``PORT`` or ``[::1]:PORT``.

    Without a host it is this machine alone (loopback); an empty text has the default port, too.
    Port 0 is any free one.

    Raises:
        UsageError: it is none of these; the message says how to write it.
    """
    if not text:
        return LOOPBACK, DEFAULT_PORT
    host, port = _split(text)
    _demand(bool(port), text, "there is no port")
    _demand(port.isascii() and port.isdecimal(), text, f"{port!r} is no port number")
    _demand(len(port) <= 5 and int(port) <= 65_535, text, "ports go from 0 to 65535")
    return host or LOOPBACK, int(port)


def _split(text: str) -> tuple[str, str]:
    """Return host and port as they are written."""
    _demand("/" not in text, text, "it has no scheme and no path")
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        _demand(rest.startswith(":"), text, "there is no port")
        _demand(bool(re.fullmatch(r"[0-9A-Fa-f:.]+(%[\w.-]+)?", host)), text, "no IPv6 address")
        return host, rest[1:]
    host, colon, port = text.rpartition(":")
    _demand(":" not in host, text, "an IPv6 address stands in brackets, as in [::1]:8765")
    _demand(bool(re.fullmatch(r"[\w.-]*", host, re.ASCII)), text, "no host name")
    _demand(bool(colon) or port[:1].isdecimal(), text, "there is no port")
    return host, port


def _demand(condition: bool, text: str, what: str) -> None:
    if not condition:
        raise UsageError(f"address {text!r}: {what}; write HOST:PORT, :PORT or PORT")


def serve(
    paths: RunPaths, host: str, port: int, announce: Callable[[str], None] = lambda _: None
) -> None:
    """Serve a run until the process is told to stop.

    Args:
        paths: the run.
        host: the name or address to listen at.
        port: 0 for any free one.
        announce: called with the URL once there is someone to answer.

    Raises:
        RunDirectoryError: there is no such run.
        UsageError: the address cannot be had.
    """
    live = CachedView(RunView(paths))
    listener = _listen(host, port)
    announce(_url(listener))
    # The server re-raises the signal that ended it: an interrupt is the way to end this.
    with contextlib.suppress(KeyboardInterrupt), live.renewed():
        _server(create_app(live)).run(sockets=[listener])


class ServerThread:
    """The service in a thread of its own, beside whatever else the process does."""

    def __init__(self, run: RunPaths | CachedView, host: str = LOOPBACK, port: int = 0) -> None:
        """Take a run to serve, whose directory may still be empty."""
        self.host = host
        self.port = port
        """The port that was asked for; after the start, the one that is listened at."""
        live = run if isinstance(run, CachedView) else CachedView(lambda: RunView(run))
        self._server = _server(create_app(live))
        self._renewed = live.renewed()
        self._thread: threading.Thread | None = None
        self.url = ""

    def start(self) -> None:
        """Listen, and answer from now on.

        Raises:
            UsageError: the address cannot be had.
            AIPerfError: the server does not come up.
        """
        listener = _listen(self.host, self.port)
        self.port = listener.getsockname()[1]
        self.url = _url(listener)
        self._renewed.__enter__()
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name="rest", daemon=True
        )
        self._thread.start()
        end = time.monotonic() + START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > end:
                self.stop()
                listener.close()
                raise AIPerfError(f"the REST service at {self.url} did not come up")
            time.sleep(0.01)

    def stop(self) -> None:
        """Answer what was asked, then stop listening."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
            self._thread = None
            self._renewed.__exit__(None, None, None)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def _server(app: FastAPI) -> uvicorn.Server:
    """Return a server that leaves the process's logging and output alone."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=2,
        )
    )


def check_free(host: str, port: int) -> None:
    """Raise UsageError unless someone may listen there now."""
    _listen(host, port).close()


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens, so that a bad address is known before anything starts."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UsageError(f"cannot serve at {host}: {error.strerror}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise UsageError(_refused(host, port, error)) from None
    return listener


def _refused(host: str, port: int, error: OSError) -> str:
    reasons = {
        errno.EADDRINUSE: "the port is in use; choose another, or 0 for any free one",
        errno.EACCES: "not permitted; choose a port from 1024 on",
        errno.EADDRNOTAVAIL: "this machine does not have that address",
    }
    return f"cannot serve at {host}, port {port}: {reasons.get(error.errno or 0, error.strerror)}"


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
