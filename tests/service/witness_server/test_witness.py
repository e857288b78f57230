"""A witness: what it states, what it refuses, and that its log can be checked."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from httpx2 import Response
from starlette.testclient import TestClient
from tests.support.clock import START, Clock

from aiperf_hpc.cli.program import main
from aiperf_hpc.errors import UsageError
from aiperf_hpc.run.journal_digest import NAMESPACE, NOTHING, JournalDigest, Statement
from aiperf_hpc.service.witness_server.app import MOST_BYTES, MOST_CLIENTS, RateLimit, create_app
from aiperf_hpc.service.witness_server.log import WitnessLog

TOKEN, OTHER = "t" * 32, "u" * 32
ROOM = 100_000


def head(size: int) -> dict[str, Any]:
    return {"bytes": size, "sha256": f"{size:064x}"}


class Asked:
    """A witness in memory, its clock, and a client of it."""

    def __init__(self, folder: Path, *, most_bytes: int = ROOM, per_minute: int = 10_000) -> None:
        self.clock = Clock()
        self.folder = folder
        self.log = WitnessLog(folder, most_bytes=most_bytes, utc=self.clock.utc)
        self.uptime = Clock()
        limit = RateLimit(per_minute, self.uptime.monotonic)
        app = create_app(self.log, "w", limit)
        self.client = TestClient(app, base_url="http://w", raise_server_exceptions=False)

    def show(self, size: int, *, run: str = "run", token: str = TOKEN, after: int = 0) -> Response:
        return self.client.post(
            "/api/v1/statements",
            json={"run": run, "head": head(size), "after": after},
            headers={"Authorization": f"Bearer {token}"},
        )

    def stated(self, size: int, *, run: str = "run", after: int = 0) -> list[Statement]:
        answer = self.show(size, run=run, after=after)
        assert answer.status_code == 200, answer.text
        return [Statement.model_validate(each) for each in answer.json()["statements"]]


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    found = Asked(tmp_path / "w")
    with found.client:
        yield found
    found.log.close()


def test_a_statement_says_what_was_shown_and_when(asked: Asked) -> None:
    (made,) = asked.stated(7)
    assert (made.number, made.run, made.run_number, made.utc) == (1, "run", 1, START)
    assert made.head == JournalDigest(bytes=7, sha256=f"{7:064x}")
    assert made.previous == made.run_previous == NOTHING
    assert TOKEN not in made.line.decode()


def test_statements_are_chained_to_those_before_of_all_runs_and_of_their_own(asked: Asked) -> None:
    (a1,) = asked.stated(1, run="a")
    (b1,) = asked.stated(2, run="b")
    asked.clock.advance(30.0)
    (a2,) = asked.stated(3, run="a", after=1)
    assert [each.number for each in (a1, b1, a2)] == [1, 2, 3]
    assert (b1.previous, a2.previous) == (a1.sha256, b1.sha256)
    assert (b1.run_previous, a2.run_previous) == (NOTHING, a1.sha256)
    assert (a2.run_number, a2.utc) == (2, START + 30.0)


def test_whoever_missed_an_answer_is_told_with_the_next(asked: Asked) -> None:
    asked.stated(1)
    assert [each.run_number for each in asked.stated(2, after=0)] == [1, 2]
    assert [each.run_number for each in asked.stated(3, after=2)] == [3]


def test_ssh_keygen_checks_a_statement_that_it_did_not_make(asked: Asked) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("OpenSSH is not installed")
    (made,) = asked.stated(7)
    signers, signature = asked.folder / "signers", asked.folder / "signature"
    key = asked.client.get("/api/v1/key").text
    signers.write_text(f"witness {' '.join(key.split()[:2])}\n", "utf-8")
    signature.write_text(made.signature, "utf-8")
    words: list[str | Path] = [
        "ssh-keygen",
        "-Y",
        "verify",
        "-f",
        signers,
        "-I",
        "witness",
        "-n",
        NAMESPACE,
    ]
    done = subprocess.run([*words, "-s", signature], input=made.message, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_it_goes_on_with_its_log_after_a_torn_line(asked: Asked) -> None:
    (before,) = asked.stated(1)
    with (asked.folder / "log.jsonl").open("ab") as file:
        file.write(b'{"v":1,"number"')
    again = Asked(asked.folder)
    made = again.stated(2, after=1)
    again.log.close()
    assert [each.previous for each in made] == [before.sha256]
    assert main(["witness", str(asked.folder), "--check"]) == 0


@pytest.mark.parametrize("change", ["dropped", "changed", "swapped"])
def test_a_log_that_was_changed_is_refused(asked: Asked, change: str) -> None:
    for size in range(4):
        asked.stated(size)
    path = asked.folder / "log.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    if change == "dropped":
        del lines[1]
    elif change == "changed":
        lines[1] = lines[1].replace(b'"bytes":1', b'"bytes":2')
    else:
        lines[1], lines[2] = lines[2], lines[1]
    path.write_bytes(b"".join(lines))
    with pytest.raises(UsageError, match="line 2"):
        WitnessLog(asked.folder, most_bytes=ROOM)
    assert main(["witness", str(asked.folder), "--check"]) == UsageError.exit_status


def test_a_runs_name_belongs_to_whoever_showed_it_first(asked: Asked) -> None:
    asked.stated(1)
    refused = asked.show(2, token=OTHER)
    assert (refused.status_code, refused.json()["type"]) == (
        403,
        "urn:aiperf-hpc:problem:not-the-owner",
    )
    assert len(asked.stated(2, after=1)) == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"x" * (MOST_BYTES + 1), 413),
        (b"{}", 422),
        (b"[" * 1_500, 400),
        (b'{"run":"r","head":{"bytes":' + b"9" * 400 + b',"sha256":"0"}}', 422),
        (json.dumps({"run": "", "head": head(1)}).encode(), 422),
        (json.dumps({"run": "r", "head": head(1), "after": -1}).encode(), 422),
        (json.dumps({"run": "r", "head": head(1), "utc": 1.0}).encode(), 422),
        (b'{"run":"\\ud800","head":{"bytes":1,"sha256":"' + b"0" * 64 + b'"}}', 422),
    ],
)
def test_what_is_no_head_is_refused_in_one_line(asked: Asked, body: bytes, status: int) -> None:
    answer = asked.client.post(
        "/api/v1/statements",
        content=body,
        headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
    )
    assert answer.status_code == status
    assert "\n" not in answer.json()["detail"]
    assert asked.log.count == 0


def test_a_token_is_needed_to_show_and_none_to_read(asked: Asked) -> None:
    assert asked.show(1, token="short").status_code == 401  # noqa: S106 -- not a secret
    asked.stated(1)
    lines = asked.client.get("/api/v1/statements").content
    assert lines == (asked.folder / "log.jsonl").read_bytes()
    assert asked.client.get("/api/v1/statements?first=2").content == b""
    assert asked.client.get("/api/v1").json()["statements"] == 1
    assert len(asked.client.get("/api/v1/runs/run/statements").json()["statements"]) == 1


def test_who_asks_too_often_is_told_when_to_ask_again(tmp_path: Path) -> None:
    asked = Asked(tmp_path, per_minute=2)
    assert [asked.show(n).status_code for n in range(3)] == [200, 200, 429]
    assert asked.show(3).headers["Retry-After"] == "30"
    asked.uptime.advance(30.0)
    assert asked.show(3).status_code == 200
    asked.log.close()


def test_of_many_clients_the_latest_are_remembered() -> None:
    limit = RateLimit(1, lambda: 0.0)
    for number in range(MOST_CLIENTS + 1):
        assert limit.seconds_until(str(number)) == 0.0
    assert limit.seconds_until(str(MOST_CLIENTS)) > 0.0
    assert limit.seconds_until("0") == 0.0


def test_a_log_does_not_outgrow_its_room(tmp_path: Path) -> None:
    asked = Asked(tmp_path, most_bytes=1_000)
    assert [asked.show(n).status_code for n in range(2)] == [200, 507]
    asked.log.close()


def test_a_clock_that_goes_back_is_not_believed(asked: Asked) -> None:
    asked.stated(1)
    asked.clock.advance(-3600.0)
    assert asked.show(2).status_code == 503
    assert asked.log.count == 1
