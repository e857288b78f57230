"""Server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.types import Message
from tests.support.run_factory import Plan, Worker, write_run
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.results.views.cached_view import CachedView
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import ReplicaEnded
from aiperf_hpc.service.answers.progress import summary
from aiperf_hpc.service.runs import OneRun
from aiperf_hpc.service.served_run import Readers
from aiperf_hpc.service.stream import EventStream, OpenStreams, run_stream


def _parsed(message: bytes) -> tuple[str, int | None, Any]:
    """Return a message's event, id and data."""
    text = message.decode()
    assert text.endswith("\n\n")
    fields = dict(line.split(": ", 1) for line in text.strip().split("\n"))
    number = int(fields["id"]) if "id" in fields else None
    return fields["event"], number, json.loads(fields["data"])


def _served(paths: RunPaths) -> OneRun:
    live = CachedView(lambda: RunView(paths), fresh=0.0)
    return OneRun("run", live, Readers(PATIENCE_SECONDS, PATIENCE_SECONDS))


def test_a_client_is_told_what_happens_and_goes_on_from_what_it_knows(tmp_path: Path) -> None:
    paths = write_run(tmp_path, Plan(replicas=1, trials=1, hpo_trials=0, ended=False))
    served = _served(paths)

    async def listen() -> None:
        messages = run_stream(served.only, after=0, seconds=0.0)
        event, _, status = _parsed(await anext(messages))
        assert (event, status["run_id"]) == ("status", RunView(paths).manifest.run_id)
        known = 0
        while "loaded" not in (told := await _next_happened(messages))["text"]:
            assert told["number"] == known + 1
            known = told["number"]
        await messages.aclose()

        later = run_stream(served.only, after=known, seconds=0.0)
        assert (await _next_happened(later))["number"] == known + 1
        await later.aclose()

        now = run_stream(served.only, after=None, seconds=0.0, question=summary)
        event, _, short = _parsed(await anext(now))
        assert (event, short["replicas"], short["run_id"]) == ("status", [], status["run_id"])
        with Worker(paths, "r0", RunView(paths).manifest.config) as worker:
            worker.write(ReplicaEnded(reason="asked to stop"))
        texts = [(await _next_happened(now))["text"] for _ in range(2)]
        assert "ended: asked to stop" in texts, "only what is new"
        await now.aclose()

    with served.served():
        asyncio.run(listen())


async def _next_happened(messages: AsyncIterator[bytes]) -> dict[str, Any]:
    async for message in messages:
        event, number, data = _parsed(message)
        if event == "happened":
            assert number == data["number"]
            told: dict[str, Any] = data
            return told
    raise AssertionError("the stream has ended")


def test_a_run_that_goes_away_is_said_and_its_return_too(tmp_path: Path) -> None:
    paths = write_run(tmp_path / "run", Plan(replicas=1, trials=0, hpo_trials=0))
    served = _served(paths)

    async def listen() -> None:
        messages = run_stream(served.only, after=None, seconds=0.0)
        assert _parsed(await anext(messages))[0] == "status"
        paths.root.rename(tmp_path / "away")
        event, _, problem = _parsed(await anext(messages))
        assert event == "problem"
        assert "is missing" in problem["detail"]
        (tmp_path / "away").rename(paths.root)
        assert _parsed(await anext(messages))[0] == "status"
        await messages.aclose()

    with served.served():
        asyncio.run(listen())


async def _endless(made: list[int]) -> AsyncIterator[bytes]:
    while True:
        made.append(len(made))
        yield b"x" * 1000


def _respond(stream: EventStream, *, reads: int, leaves: bool = False) -> list[Message]:
    """Run a response against a client that reads so many messages, and then none."""
    sent: list[Message] = []

    async def client() -> None:
        full, gone = asyncio.Event(), asyncio.Event()

        async def send(message: Message) -> None:
            if len(sent) == reads:
                if leaves:
                    gone.set()
                await full.wait()
            sent.append(message)

        async def receive() -> Message:
            await gone.wait()
            return {"type": "http.disconnect"}

        await stream({"type": "http"}, receive, send)

    asyncio.run(client())
    return sent


def test_a_client_that_never_reads_is_left_and_nothing_is_made_for_it() -> None:
    made: list[int] = []
    sent = _respond(EventStream(_endless(made), send_seconds=0.01), reads=3)
    assert [m["type"] for m in sent] == ["http.response.start", *["http.response.body"] * 2]
    assert len(made) == 3, "what it has read, and one that it has not"


def test_a_client_that_goes_ends_the_stream() -> None:
    made: list[int] = []
    _respond(EventStream(_endless(made)), reads=2, leaves=True)
    assert len(made) == 2


def test_one_stream_too_many_is_refused_and_one_that_ends_makes_room() -> None:
    streams = OpenStreams(most=1, count=1)
    refused, body = _respond(EventStream(_endless([]), open_streams=streams), reads=2)
    assert refused["status"] == 503
    assert (b"retry-after", b"1") in refused["headers"]
    problem = json.loads(body["body"])
    assert problem["type"].endswith("too-many-streams")
    assert problem["detail"].startswith("1 event streams are open")
    streams.count = 0
    _respond(EventStream(_endless([]), open_streams=streams), reads=2, leaves=True)
    assert streams.count == 0
