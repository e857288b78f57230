"""The REST service: its answers in process, its life on a real loopback socket."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient
from tests.support.run_factory import Plan, Worker, refreshed, write_manifest, write_run
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.errors import AIPerfError, JournalError, UsageError
from aiperf_hpc.primary.monitor.cached_view import CachedView
from aiperf_hpc.primary.monitor.run_view import RunStatus, RunView, ScoreStatus, TrialStatus
from aiperf_hpc.primary.report.model import make_report
from aiperf_hpc.primary.service.rest import (
    DEFAULT_PORT,
    ServerThread,
    create_app,
    parse_address,
    serve,
)
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import ReplicaEnded


@contextmanager
def _client(paths: RunPaths) -> Iterator[TestClient]:
    with TestClient(create_app(CachedView(lambda: RunView(paths)))) as client:
        yield client


# The answers.


def test_health_is_that_of_a_service_that_can_read_its_run(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    with TestClient(create_app(CachedView(lambda: RunView(paths), fresh=0.0))) as client:
        assert client.get("/healthz").status_code == 503
        write_manifest(paths, Plan())
        answer = client.get("/healthz")
    assert answer.status_code == 200
    assert answer.json()["status"] == "ok"


def test_status_is_what_the_view_says(tmp_path: Path) -> None:
    paths = write_run(tmp_path)
    with _client(paths) as client:
        answer = client.get("/api/v1/status")
    assert answer.status_code == 200
    expected = refreshed(paths).status()
    got = RunStatus.model_validate(answer.json())
    unsteady = {"replicas": ()}  # seconds since a record
    assert got.model_copy(update=unsteady) == expected.model_copy(update=unsteady)
    assert [r.id for r in got.replicas] == ["r0", "r1"]


def test_score_is_what_the_view_says(tmp_path: Path) -> None:
    paths = write_run(tmp_path)
    with _client(paths) as client:
        answer = client.get("/api/v1/score").json()
    view = refreshed(paths)
    assert answer["run_id"] == view.manifest.run_id
    assert answer["final"] is True
    assert answer["interval_hours"] == 0.02
    assert [ScoreStatus.model_validate(p) for p in answer["points"]] == view.score()
    assert answer["points"][-1] == answer["score"]


def test_a_run_that_has_not_started_has_a_status_and_no_points(tmp_path: Path) -> None:
    write_manifest(RunPaths(tmp_path), Plan())
    with _client(RunPaths(tmp_path)) as client:
        assert client.get("/api/v1/status").json()["state"] == "starting"
        score = client.get("/api/v1/score").json()
        assert client.get("/api/v1/trials").json()["trials"] == []
    assert (score["final"], score["points"], score["score"]["operations"]) == (False, [], 0)


def test_trials_by_state_and_replica(tmp_path: Path) -> None:
    paths = write_run(tmp_path)
    everything = refreshed(paths).trials()
    with _client(paths) as client:

        def ids(**query: str | int) -> list[str]:
            answer = client.get("/api/v1/trials", params=query)
            assert answer.status_code == 200
            return [TrialStatus.model_validate(t).id for t in answer.json()["trials"]]

        assert ids() == [t.id for t in everything]
        assert sorted(ids(state="failed")) == ["r0-t006", "r1-t006"]
        assert ids(state="stopped early", replica="r1") == ["r1-t004"]
        assert ids(replica="r7") == []
        assert ids(limit=3, offset=2) == [t.id for t in everything[2:5]]
        assert ids(offset=10**30) == []
        page = client.get("/api/v1/trials", params={"limit": 3, "offset": 2}).json()
    assert (page["total"], page["offset"], page["limit"]) == (14, 2, 3)


@pytest.mark.parametrize(
    "query", ["state=unheard", "limit=0", "limit=10001", "limit=x", "offset=-1"]
)
def test_a_question_that_makes_no_sense_is_refused(tmp_path: Path, query: str) -> None:
    with _client(write_run(tmp_path, Plan(trials=0, hpo_trials=0))) as client:
        answer = client.get(f"/api/v1/trials?{query}")
    assert answer.status_code == 422


def test_nothing_can_be_changed(tmp_path: Path) -> None:
    with _client(write_run(tmp_path, Plan(trials=0, hpo_trials=0))) as client:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert client.request(method, "/api/v1/status").status_code == 405
        assert client.get("/docs").status_code == 404, "its scripts come from elsewhere"


def test_the_interface_is_described_with_its_models(tmp_path: Path) -> None:
    with _client(RunPaths(tmp_path)) as client:
        described = client.get("/openapi.json").json()
    answers = {
        path: operation["get"]["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
        for path, operation in described["paths"].items()
    }
    assert {path: ref.rsplit("/", 1)[1] for path, ref in answers.items()} == {
        "/healthz": "Health",
        "/api/v1/status": "RunStatus",
        "/api/v1/score": "Score",
        "/api/v1/trials": "Trials",
    }
    assert "503" in described["paths"]["/api/v1/status"]["get"]["responses"]


# What goes wrong.


def _is_one_clear_message(answer: httpx2.Response, *words: str) -> None:
    assert answer.status_code == 503
    assert list(answer.json()) == ["error"]
    message = answer.json()["error"]
    assert all(word in message for word in words), message
    assert "\n" not in message
    assert "Traceback" not in message


def test_no_run_yet_is_503_and_then_an_answer(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    with TestClient(create_app(CachedView(lambda: RunView(paths), fresh=0.0))) as client:
        refused = client.get("/api/v1/status")
        _is_one_clear_message(refused, "not a run directory")
        assert refused.headers["retry-after"] == "1"
        write_manifest(paths, Plan())
        assert client.get("/api/v1/status").json()["state"] == "starting"


EVERYTHING = ("/healthz", "/api/v1/status", "/api/v1/score", "/api/v1/trials")


def _move(path: Path, away: Path) -> Callable[[], object]:
    path.rename(away)
    return lambda: away.rename(path)


def _rewrite(path: Path, change: Callable[[bytes], bytes]) -> Callable[[], object]:
    content = path.read_bytes()
    path.write_bytes(change(content))
    return lambda: path.write_bytes(content)


@pytest.mark.parametrize(
    ("lose", "words"),
    [
        (
            lambda p: _move(p.root, p.root.with_name("elsewhere")),
            "run is gone, or its run.yaml; put it back",
        ),
        (
            lambda p: _move(p.manifest, p.root.with_name("elsewhere")),
            "run is gone, or its run.yaml; put it back",
        ),
        (lambda p: _rewrite(p.manifest, lambda _: b"{"), "run.yaml is not what it was"),
        (
            lambda p: _move(p.primary_journal, p.root.with_name("elsewhere")),
            "primary/journal.jsonl is gone; put it back",
        ),
        (
            lambda p: _move(p.replica("r0"), p.root.with_name("elsewhere")),
            "replicas/r0/0.0/journal.jsonl is gone; put it back",
        ),
        (
            lambda p: _rewrite(p.replica_journal("r0"), lambda content: content[:1000]),
            "replicas/r0/0.0/journal.jsonl has become shorter: 1000 bytes, of which",
        ),
    ],
)
def test_a_run_that_is_no_longer_there_is_503_until_it_is_back(
    tmp_path: Path, lose: Callable[[RunPaths], Callable[[], object]], words: str
) -> None:
    paths = write_run(tmp_path / "run", Plan(replicas=1, trials=1, hpo_trials=0))
    # A view that is there already, as `aiperf serve` and `aiperf start --serve` have.
    with TestClient(create_app(CachedView(RunView(paths), fresh=0.0))) as client:
        before = client.get("/api/v1/status").json()
        put_back = lose(paths)
        for path in EVERYTHING:
            _is_one_clear_message(client.get(path), words)
        put_back()
        assert {client.get(path).status_code for path in EVERYTHING} == {200}
        assert client.get("/api/v1/status").json() == before


def test_a_run_that_may_no_longer_be_read_is_503(unprivileged: Path) -> None:
    paths = write_run(unprivileged / "run", Plan(replicas=1, trials=1, hpo_trials=0))
    with TestClient(create_app(CachedView(RunView(paths), fresh=0.0))) as client:
        assert client.get("/healthz").status_code == 200
        for path, words in (
            (paths.manifest, "run.yaml: Permission denied"),
            (paths.replica_journal("r0"), "r0/0.0/journal.jsonl: Permission denied"),
            (paths.root, "run.yaml: Permission denied"),
        ):
            mode = path.stat().st_mode
            path.chmod(0)
            for address in EVERYTHING:
                _is_one_clear_message(client.get(address), words)
            path.chmod(mode)
            assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize("path", ["status", "score", "trials"])
def test_a_journal_that_cannot_be_read_is_503(tmp_path: Path, path: str) -> None:
    paths = write_run(tmp_path, Plan(replicas=1, trials=1, hpo_trials=0))
    paths.replica_journal("r0").unlink()
    paths.replica_journal("r0").mkdir()
    with _client(paths) as client:
        answer = client.get(f"/api/v1/{path}")
    _is_one_clear_message(answer, "cannot read the journal", "replicas/r0/0.0/journal.jsonl")


def test_a_live_score_goes_by_the_records_and_needs_no_graph(tmp_path: Path) -> None:
    """Thousands of graphs are not read for it: the report and verify count them."""
    paths = write_run(tmp_path, Plan(replicas=1, trials=2, hpo_trials=0, failed=0))
    counted = make_report(refreshed(paths)).score.ops
    for graph in paths.candidates.glob("*.json"):
        graph.unlink()
    with _client(paths) as client:
        assert client.get("/api/v1/score").json()["score"]["ops"] == counted


def test_a_file_system_that_fails_is_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(_: RunView) -> None:
        raise OSError(116, "Stale file handle", "/shared/run")

    paths = write_run(tmp_path, Plan(trials=0, hpo_trials=0))
    monkeypatch.setattr(RunView, "refresh", stale)
    with _client(paths) as client:
        _is_one_clear_message(client.get("/api/v1/status"), "Stale file handle", "/shared/run")


def test_a_corrupt_line_is_a_problem_and_not_a_failure(tmp_path: Path) -> None:
    paths = write_run(tmp_path, Plan(replicas=1))
    with paths.replica_journal("r0").open("ab") as file:
        file.write(b"no record\n")
    with _client(paths) as client:
        (problem,) = client.get("/api/v1/status").json()["problems"]
    assert "not a record" in problem


# The cache.


class _Counting(RunView):
    """A view that counts how often the journals are read."""

    reads = 0

    def refresh(self) -> None:
        self.reads += 1
        super().refresh()


def test_many_clients_read_the_journals_once_a_second(tmp_path: Path) -> None:
    now = 100.0
    view = _Counting(write_run(tmp_path, Plan(replicas=1)))
    live = CachedView(view, clock=lambda: now)
    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(lambda _: live.ask(RunView.status), range(64)))
    assert view.reads == 1
    assert all(answer is answers[0] for answer in answers)
    now = 100.9
    live.ask(RunView.trials)
    assert view.reads == 1
    now = 101.1
    assert live.ask(RunView.status) is not answers[0]
    assert view.reads == 2


def test_what_was_added_is_seen_when_the_answer_is_old(tmp_path: Path) -> None:
    now = 0.0
    paths = write_run(tmp_path, Plan(replicas=1, ended=False))
    live = CachedView(lambda: RunView(paths), clock=lambda: now)
    assert live.ask(RunView.status).replicas[0].state != "ended"
    with Worker(paths, "r0", RunView(paths).manifest.config) as worker:
        worker.write(ReplicaEnded(reason="asked to stop"))
    assert live.ask(RunView.status).replicas[0].state != "ended"
    now = 1.5
    assert live.ask(RunView.status).replicas[0].state == "ended"


def test_a_failure_is_kept_as_long_as_an_answer_and_no_longer(tmp_path: Path) -> None:
    now, made = 0.0, 0

    def make() -> RunView:
        nonlocal made
        made += 1
        if made == 1:
            raise JournalError("not yet")
        return RunView(paths)

    paths = write_run(tmp_path, Plan(replicas=1, trials=1, hpo_trials=0))
    live = CachedView(make, clock=lambda: now)
    for _ in range(3):
        with pytest.raises(JournalError, match="not yet"):
            live.ask(RunView.status)
    assert made == 1
    now = 1.5
    assert live.ask(RunView.status).run_id
    now = 3.0
    live.ask(RunView.status)
    assert made == 2, "the view is kept"


# The server.


def _get(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 -- a loopback URL
        loaded = json.loads(answer.read())
    assert isinstance(loaded, dict)
    return loaded


def test_a_real_server_on_a_free_port(tmp_path: Path) -> None:
    paths = write_run(tmp_path, Plan(replicas=1))
    with ServerThread(paths) as server:
        assert server.port > 0
        assert server.url == f"http://127.0.0.1:{server.port}"
        assert _get(f"{server.url}/healthz")["status"] == "ok"
        with ThreadPoolExecutor(8) as clients:
            paths_asked = ["status", "score", "trials"] * 8
            answers = list(clients.map(lambda p: _get(f"{server.url}/api/v1/{p}"), paths_asked))
        assert answers[0]["run_id"] == answers[1]["run_id"]
        assert len(answers[2]["trials"]) == 7
    with pytest.raises(urllib.error.URLError):
        _get(f"{server.url}/healthz")
    assert not any(thread.name == "rest" for thread in threading.enumerate())


def test_a_server_may_be_stopped_twice_and_before_its_start(tmp_path: Path) -> None:
    server = ServerThread(RunPaths(tmp_path))
    server.stop()
    with ServerThread(RunPaths(tmp_path)) as running:
        running.stop()


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    paths = write_run(tmp_path, Plan(trials=0, hpo_trials=0))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        message = f"cannot serve at 127.0.0.1, port {port}: the port is in use"
        with pytest.raises(UsageError, match=message):
            ServerThread(paths, "127.0.0.1", port).start()
        with pytest.raises(UsageError, match=message):
            serve(paths, "127.0.0.1", port)


def test_a_port_that_is_not_permitted_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: socket.socket, _: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(UsageError, match=r"port 80: not permitted; choose a port from 1024 on"):
        ServerThread(RunPaths(tmp_path), "127.0.0.1", 80).start()


def test_an_address_of_another_machine_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this machine does not have that address"):
        ServerThread(RunPaths(tmp_path), "192.0.2.1", 0).start()
    with pytest.raises(UsageError, match=r"cannot serve at no-such-host\.invalid"):
        ServerThread(RunPaths(tmp_path), "no-such-host.invalid", 0).start()


def test_a_server_that_does_not_come_up_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ServerThread(RunPaths(tmp_path))
    monkeypatch.setattr(server._server, "run", lambda _: None)
    with pytest.raises(AIPerfError, match="did not come up"):
        server.start()


def test_serving_no_run_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a run directory"):
        serve(RunPaths(tmp_path), "127.0.0.1", 0)


def test_serving_in_a_process_until_an_interrupt(tmp_path: Path) -> None:
    write_run(tmp_path, Plan(replicas=1, trials=1, hpo_trials=0))
    code = (
        "import sys; from pathlib import Path; from aiperf_hpc.run.paths import RunPaths;"
        "from aiperf_hpc.primary.service.rest import serve;"
        "serve(RunPaths(Path(sys.argv[1])), '127.0.0.1', 0, lambda u: print(u, flush=True))"
    )
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert _get(f"{url}/api/v1/status")["state"] == "ended"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, output, errors) == (0, "", "")


# Addresses.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("127.0.0.1", DEFAULT_PORT)),
        ("8080", ("127.0.0.1", 8080)),
        (":8080", ("127.0.0.1", 8080)),
        ("0", ("127.0.0.1", 0)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),  # noqa: S104 -- a user may ask for it
        ("login-1.cluster:65535", ("login-1.cluster", 65_535)),
        ("[::1]:8080", ("::1", 8080)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("host", "there is no port"),
        ("80x", "'80x' is no port number"),
        ("host:", "there is no port"),
        (":", "there is no port"),
        ("host:x", "'x' is no port number"),
        ("host:-1", "'-1' is no port number"),
        ("host:65536", "ports go from 0 to 65535"),
        ("host:" + "9" * 5000, "ports go from 0 to 65535"),
        ("host:٣", "no port number"),
        ("::1:8080", "stands in brackets"),
        ("[]:80", "no IPv6 address"),
        ("[::1]", "there is no port"),
        ("[::1]:", "there is no port"),
        ("http://host:80", "no scheme"),
        ("a b:80", "no host name"),
        ("h\nx:80", "no host name"),
    ],
)
def test_addresses_that_are_none(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as raised:
        parse_address(text)
    assert "write HOST:PORT" in str(raised.value)
    assert "\n" not in str(raised.value)
