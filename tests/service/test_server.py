"""The server on a real loopback socket."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.service.conftest import TOKEN
from tests.service.serving import serving_process
from tests.support.run_factory import Plan, write_run
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.errors import AIPerfError, UsageError
from aiperf_hpc.results.views.cached_view import CachedView
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.service.endpoint import Endpoint
from aiperf_hpc.service.runs import FolderOfRuns, OneRun, runs_in
from aiperf_hpc.service.server import ServerThread, check_free, serve


def _get(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 -- a loopback URL
        loaded = json.loads(answer.read())
    assert isinstance(loaded, dict)
    return loaded


def test_a_real_server_on_a_free_port(tmp_path: Path) -> None:
    paths = write_run(tmp_path, Plan(replicas=1))
    with ServerThread(OneRun("run", CachedView(RunView(paths)))) as server:
        assert server.endpoint.port > 0
        assert server.url == f"http://127.0.0.1:{server.endpoint.port}"
        assert _get(f"{server.url}/healthz")["status"] == "ok"
        with ThreadPoolExecutor(8) as clients:
            paths_asked = ["status", "score", "trials"] * 8
            answers = list(clients.map(lambda p: _get(f"{server.url}/api/v1/{p}"), paths_asked))
        assert answers[0]["run_id"] == answers[1]["run_id"]
        assert len(answers[2]["trials"]) == 7
    with pytest.raises(urllib.error.URLError):
        _get(f"{server.url}/healthz")
    assert not any(thread.name == "rest" for thread in threading.enumerate())


def test_streams_end_with_the_service(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_run(tmp_path, Plan(trials=0, hpo_trials=0))
    with ServerThread(runs_in(tmp_path)) as server:
        name = _get(f"{server.url}/api/v1")["run"]
        address = f"{server.url}/api/v1/runs/{name}/events/stream"
        stream = urllib.request.urlopen(address, timeout=PATIENCE_SECONDS)  # noqa: S310 -- loopback
        assert stream.readline() == b"event: status\n"
    with stream:
        assert stream.read().endswith(b"\n\n"), "all that was sent, and then the end"
    assert caplog.records == []


def test_a_server_may_be_stopped_twice_and_before_its_start(tmp_path: Path) -> None:
    server = ServerThread(FolderOfRuns(tmp_path))
    server.stop()
    with ServerThread(FolderOfRuns(tmp_path)) as running:
        running.stop()


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    write_run(tmp_path, Plan(trials=0, hpo_trials=0))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        message = f"cannot serve at 127.0.0.1, port {port}: the port is in use"
        with pytest.raises(UsageError, match=message):
            ServerThread(runs_in(tmp_path), Endpoint("127.0.0.1", port)).start()
        with pytest.raises(UsageError, match=message):
            serve(runs_in(tmp_path), Endpoint("127.0.0.1", port))


def test_a_port_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, _: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(UsageError, match=r"port 80: not permitted; choose a port from 1024 on"):
        ServerThread(FolderOfRuns(tmp_path), Endpoint("127.0.0.1", 80)).start()


def test_an_address_of_another_machine_is_one_clear_line(tmp_path: Path, token_file: Path) -> None:
    with pytest.raises(UsageError, match="this machine does not have that address"):
        ServerThread(FolderOfRuns(tmp_path), Endpoint("192.0.2.1", 0, token_file)).start()
    elsewhere = Endpoint("no-such-host.invalid", 0, token_file)
    with pytest.raises(UsageError, match=r"cannot serve at no-such-host\.invalid"):
        ServerThread(FolderOfRuns(tmp_path), elsewhere).start()


def test_a_server_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ServerThread(FolderOfRuns(tmp_path))
    monkeypatch.setattr(server._server, "run", lambda _: None)
    with pytest.raises(AIPerfError, match="did not start"):
        server.start()


def test_serving_in_a_process_until_an_interrupt(tmp_path: Path) -> None:
    write_run(tmp_path, Plan(replicas=1, trials=1, hpo_trials=0))
    with serving_process(tmp_path) as (process, url):
        assert _get(f"{url}/api/v1/status")["state"] == "ended"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, output, errors) == (0, "", "")


def test_https_with_a_token(
    tmp_path: Path, token_file: Path, certificate: tuple[Path, Path]
) -> None:
    log: list[str] = []
    endpoint = Endpoint("127.0.0.1", 0, token_file, *certificate)
    trusting = ssl.create_default_context(cafile=certificate[0])
    with ServerThread(FolderOfRuns(tmp_path), endpoint, log.append) as server:
        assert server.url.startswith("https://127.0.0.1:")
        url = f"{server.url}/api/v1/runs"
        for headers, status in (({}, 401), ({"Authorization": f"Bearer {TOKEN}"}, 405)):
            request = urllib.request.Request(url, b"{}", headers, method="PUT")  # noqa: S310
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=PATIENCE_SECONDS, context=trusting)  # noqa: S310
            assert refused.value.code == status
            refused.value.close()
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(url, timeout=PATIENCE_SECONDS)  # noqa: S310
    assert [line.split(": ")[-1] for line in log] == ["Bearer TOKEN", "405"]


def test_what_protects_a_service_is_checked_before_it_listens(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--token-file"):
        ServerThread(FolderOfRuns(tmp_path), Endpoint("0.0.0.0"))  # noqa: S104 -- it is refused
    with pytest.raises(UsageError, match="must be given together"):
        check_free(Endpoint(key=tmp_path / "key"))
