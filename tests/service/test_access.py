"""Who may read and change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from tests.service.conftest import SHOWN, TOKEN
from tests.support.run_factory import Plan, write_run

from aiperf_hpc.service.access import Policy
from aiperf_hpc.service.app import create_app
from aiperf_hpc.service.endpoint import Tokens
from aiperf_hpc.service.problem import Problem
from aiperf_hpc.service.runs import FolderOfRuns

TOKENS = Tokens([TOKEN])


@contextmanager
def _client(
    folder: Path, policy: Policy, log: list[str] | None = None, host: str = "127.0.0.1"
) -> Iterator[TestClient]:
    runs = FolderOfRuns(folder)
    lines = [] if log is None else log
    app = create_app(runs, policy, lines.append)
    with runs.served(), TestClient(app, base_url=f"http://{host}") as client:
        yield client


@pytest.mark.parametrize(
    "shown",
    [
        None,
        "",
        f"Bearer {TOKEN}x",
        f"Basic {TOKEN}",
        "Bearer \xff\xfe",
        "Bearer " + "x" * 8000,
    ],
)
def test_without_a_token_nothing_is_revealed(tmp_path: Path, shown: str | None) -> None:
    write_run(tmp_path / "a", Plan(replicas=1, trials=0, hpo_trials=0))
    headers = {} if shown is None else {b"Authorization": shown.encode("latin-1")}
    with _client(tmp_path, Policy(TOKENS, open_reading=False)) as client:
        answers = [
            client.request(method, path, headers=headers)
            for method in ("GET", "POST", "DELETE", "OPTIONS", "HEAD")
            for path in ("/api/v1/runs", "/api/v1/runs/a/status", "/api/v1/runs/none", "/metrics")
        ]
    assert {answer.status_code for answer in answers} == {401}
    assert {answer.headers["www-authenticate"] for answer in answers} == {"Bearer"}
    bodies = {answer.text for answer in answers if answer.text}
    assert len(bodies) == 1, "what is there and what is not cannot be told apart"
    assert "Authorization: Bearer TOKEN" in Problem.model_validate_json(bodies.pop()).detail


def test_with_a_token_everything_is_answered(tmp_path: Path) -> None:
    with _client(tmp_path, Policy(TOKENS, open_reading=False)) as client:
        assert client.get("/api/v1/runs", headers=SHOWN).status_code == 200
        assert client.get("/api/v1/runs/none/status", headers=SHOWN).status_code == 404
        lower = {"Authorization": f"bearer {TOKEN}"}
        assert client.get("/api/v1/runs", headers=lower).status_code == 200


def test_what_says_nothing_of_runs_is_open(tmp_path: Path) -> None:
    with _client(tmp_path, Policy(TOKENS, open_reading=False)) as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/openapi.json").status_code == 200
        assert client.get("/readyz").status_code == 401


def test_changes_need_a_token_where_reading_does_not(tmp_path: Path) -> None:
    with _client(tmp_path, Policy(TOKENS)) as client:
        assert client.get("/api/v1/runs").status_code == 200
        assert client.post("/api/v1/runs").status_code == 401
    with _client(tmp_path, Policy()) as client:
        refused = client.post("/api/v1/runs", headers=SHOWN)
    assert refused.status_code == 403
    assert "start it with --token-file" in Problem.model_validate(refused.json()).detail


def test_a_page_from_elsewhere_cannot_read_under_its_own_name(tmp_path: Path) -> None:
    """A name that points to 127.0.0.1 would let a browser here read for whoever owns the name."""
    for host in ("evil.example", "127.0.0.1.evil.example", "[", ""):
        with _client(tmp_path, Policy(TOKENS)) as client:
            refused = client.get("/api/v1/runs", headers={"Host": host})
            assert refused.status_code == 403, host
            allowed = client.get("/api/v1/runs", headers={**SHOWN, "Host": host})
            assert allowed.status_code == 200
    for host in ("localhost:8765", "127.0.0.1", "[::1]:80"):
        with _client(tmp_path, Policy()) as client:
            assert client.get("/api/v1/runs", headers={"Host": host}).status_code == 200


def test_attempts_and_changes_are_logged_in_one_line(tmp_path: Path) -> None:
    log: list[str] = []
    with _client(tmp_path, Policy(TOKENS), log) as client:
        client.get("/api/v1/runs", headers=SHOWN)
        assert log == [], "reading is not logged"
        client.post("/api/v1/runs/x%0a%1b[2J" + "y" * 500, headers={"Authorization": "Bearer no"})
        client.put("/api/v1/none", headers=SHOWN)
    refused, done = log
    assert refused.startswith(r"service: testclient POST /api/v1/runs/x\n\x1b[2Jyyy")
    assert refused.endswith(": 401, unknown token: Authorization: Bearer TOKEN")
    assert len(refused) < 350
    assert done == "service: testclient PUT /api/v1/none: 404"
    assert TOKEN not in "".join(log)
