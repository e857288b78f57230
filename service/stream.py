"""Server-sent events with the progress of a run.

Clients that do not read are disconnected. Unread data is bounded by the socket's buffers, because
each message is created only after the previous one was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple, TypeAlias

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.results.views.run_view import RunStatus, RunView
from aiperf_hpc.service.answers.events import Events, EventsQuery, EventsQuestion
from aiperf_hpc.service.answers.progress import status
from aiperf_hpc.service.problem import ProblemError, problem_of, problem_response
from aiperf_hpc.service.served_run import ServedRun

ALIVE_SECONDS = 15.0
"""Heartbeat interval in seconds."""
SEND_SECONDS = 30.0
"""Seconds that a client may take to read sent data before it is disconnected."""
AT_ONCE = 500
"""Maximum number of events sent per poll."""
MOST_STREAMS = 256
"""Maximum number of concurrent streams; each holds one of about 1,000 connections of a process."""
LAST: Message = {"type": "http.response.body", "body": b"", "more_body": False}
LAST_SECONDS = 1.0
"""Seconds that a client may take to read the end of the stream at shutdown."""


StatusQuestion: TypeAlias = Callable[[RunView], RunStatus]


@dataclass(slots=True)
class OpenStreams:
    """Current and maximum number of open streams of a service."""

    most: int = MOST_STREAMS
    count: int = 0

    def refusal(self) -> ProblemError | None:
        """Return the reason why no further stream can be opened, or None if one can."""
        if self.count < self.most:
            return None
        detail = f"{self.most} event streams are open, which is the limit; poll /events"
        return ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, "too-many-streams", detail)


class EventStream(Response):
    """A response that sends messages until the client disconnects or stops reading."""

    media_type = "text/event-stream"

    def __init__(
        self,
        messages: AsyncIterator[bytes],
        ending: asyncio.Event | None = None,
        send_seconds: float = SEND_SECONDS,
        open_streams: OpenStreams | None = None,
    ) -> None:
        """Create a response from the messages, the shutdown event, and the counter of open
        streams."""
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._messages = messages
        self._ending = ending or asyncio.Event()
        self._send_seconds = send_seconds
        self._open = open_streams or OpenStreams()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (refusal := self._open.refusal()) is not None:
            await problem_response(refusal)(scope, receive, send)
            return
        self._open.count += 1
        try:
            await self._respond(receive, send)
        finally:
            self._open.count -= 1

    async def _respond(self, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_disconnected(receive))
        ending = asyncio.ensure_future(self._ending.wait())
        tasks = (sending, gone, ending)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._ending.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(send(LAST), LAST_SECONDS)
        error = None if sending.cancelled() else sending.exception()
        if error is not None and not isinstance(error, TimeoutError):
            raise error  # A TimeoutError means that the client does not read: disconnect it.

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for message in self._messages:
            body = {"type": "http.response.body", "body": message, "more_body": True}
            await asyncio.wait_for(send(body), self._send_seconds)
        await send(LAST)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class StatusMessage(NamedTuple):
    """Overall state of a run."""

    event: str
    data: bytes


def message(event: str, data: str | bytes, number: int | None = None) -> bytes:
    """Return a server-sent event; its data is JSON without line breaks."""
    body = data if isinstance(data, bytes) else data.encode()
    known = b"" if number is None else b"id: %d\n" % number
    return b"%sevent: %s\ndata: %s\n\n" % (known, event.encode(), body)


async def run_stream(
    run: ServedRun, after: int | None, seconds: float, question: StatusQuestion = status
) -> AsyncGenerator[bytes, None]:
    """Yield the status changes and events of a run.

    Args:
        run: served run.
        after: number of the last known event; None for future events only.
        seconds: polling interval.
        question: query for the status.
    """
    sent: StatusMessage | None = None
    sent_at = time.monotonic()
    while True:
        now, events = await _look(run, after, question)
        if now != sent:
            yield message(*now)
        if events is not None:
            for event in events.events if after is not None else ():
                yield message("happened", event.model_dump_json(), event.number)
            after = events.events[-1].number if after is not None and events.events else events.last
        if now != sent or (events is not None and events.events):
            sent, sent_at = now, time.monotonic()
        elif time.monotonic() - sent_at >= ALIVE_SECONDS:
            sent_at = time.monotonic()
            yield b": alive\n\n"
        await asyncio.sleep(seconds)


async def _look(
    run: ServedRun, after: int | None, question: StatusQuestion
) -> tuple[StatusMessage, Events | None]:
    """Return the current state of the run and the events after a number, or the latest for None."""
    try:
        found = await run.text(question)
        limit = 1 if after is None else AT_ONCE
        events = await run.ask(EventsQuestion(run.events, EventsQuery(after=after, limit=limit)))
    except AIPerfError as error:
        return StatusMessage(
            "problem", problem_of(error).model_dump_json(exclude_defaults=True).encode()
        ), None
    if found is None or events is None:
        return StatusMessage("loading", run.loading().model_dump_json().encode()), None
    return StatusMessage("status", found.body), events
