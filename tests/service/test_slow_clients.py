"""Clients that send part of a request: they neither occupy a server nor fill its log."""

from __future__ import annotations

import resource
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.service.serving import serving_process
from tests.support.run_factory import Plan, write_run
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.witness import listening

from aiperf_hpc.service import server as served
from aiperf_hpc.service.runs import runs_in
from aiperf_hpc.service.server import ServerThread

MOST = 8
FILES = 48
"""Maximum number of open files of the service that runs out of them."""
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
HALVES = {
    "nothing": b"",
    "half of the head": b"GET /healthz HTTP/1.1\r\nHost: 127",
    "half of the body": b"POST /api/v1/statements HTTP/1.1\r\nHost: w\r\nContent-Length: 9\r\n\r\n",
}


@pytest.fixture(params=["service", "witness"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a server."""
    if request.param == "witness":
        with listening(tmp_path) as (address, _):
            yield address
    else:
        with ServerThread(runs_in(tmp_path)) as server:
            yield server.url


def _send(url: str, part: bytes) -> socket.socket:
    where = urlsplit(url)
    client = socket.create_connection((where.hostname, where.port), PATIENCE_SECONDS)
    client.sendall(part)
    return client


def _closed(client: socket.socket) -> bool:
    """Wait until the server closes a connection."""
    try:
        while client.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def _healthy(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/healthz", timeout=PATIENCE_SECONDS) as answer:  # noqa: S310
        return bool(answer.status == 200)


@pytest.mark.parametrize("part", HALVES.values(), ids=HALVES)
def test_the_longest_waiting_of_too_many_connections_is_closed(
    url: str, part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "MOST_CONNECTIONS", MOST)
    with ExitStack() as stack:
        clients = [stack.enter_context(_send(url, part)) for _ in range(2 * MOST)]
        assert _healthy(url)
        assert all(_closed(client) for client in clients[: MOST + 1])
        clients[-1].setblocking(False)
        with pytest.raises(BlockingIOError):  # It is open: there is nothing more to read.
            _closed(clients[-1])


@pytest.mark.parametrize("part", [*HALVES.values(), WHOLE + WHOLE[:-2]])
def test_a_request_that_does_not_arrive_in_time_is_closed(
    url: str, part: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(served, "REQUEST_SECONDS", 0.2)
    with _send(url, part) as client:
        assert _closed(client)
    assert _healthy(url)
    assert caplog.records == []


def test_a_connection_that_receives_events_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "MOST_CONNECTIONS", MOST)
    monkeypatch.setattr(served, "REQUEST_SECONDS", 0.2)
    write_run(tmp_path / "run", Plan(trials=0, hpo_trials=0))
    with ServerThread(runs_in(tmp_path)) as server, ExitStack() as stack:
        address = f"{server.url}/api/v1/runs/run/events/stream?seconds=0.5"
        stream = stack.enter_context(urllib.request.urlopen(address, timeout=PATIENCE_SECONDS))  # noqa: S310
        clients = [stack.enter_context(_send(server.url, b"GET")) for _ in range(2 * MOST)]
        assert all(_closed(client) for client in clients)
        assert stream.readline() == b"event: status\n"
        server.stop()
        assert stream.read().endswith(b"\n\n"), "it was open until the service ended"


def test_a_service_out_of_files_reports_it_once_and_recovers(tmp_path: Path) -> None:
    with serving_process(tmp_path) as (process, url):
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
        with ExitStack() as stack:
            clients = [stack.enter_context(_send(url, b"GET")) for _ in range(2 * FILES)]
            clients[-1].settimeout(1.5)
            with pytest.raises(TimeoutError):
                clients[-1].recv(1)
        assert _healthy(url)
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert errors == "service: connections cannot be accepted: Too many open files\n"
