"""All runs in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.service.serving import serving, serving_folder
from tests.support.damage import without_start
from tests.support.run_factory import Plan, write_run
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.service.problem import Problem
from aiperf_hpc.service.runs import FolderOfRuns, OneRun, runs_in
from aiperf_hpc.service.served_run import Readers

SMALL = Plan(replicas=1, trials=1, hpo_trials=0)


def test_a_folder_has_many_runs_and_a_run_is_one(tmp_path: Path) -> None:
    write_run(tmp_path / "a", SMALL)
    assert isinstance(runs_in(tmp_path), FolderOfRuns)
    alone = runs_in(tmp_path / "a")
    assert isinstance(alone, OneRun)
    assert alone.only.name == "a"


def test_runs_are_listed_and_served_by_their_names(tmp_path: Path) -> None:
    write_run(tmp_path / "old one", SMALL)
    write_run(tmp_path / "repeat" / "1", SMALL)
    (tmp_path / "foreign").mkdir()
    write_run(tmp_path.parent / f"{tmp_path.name}-beside", SMALL)
    (tmp_path / "link").symlink_to(tmp_path.parent / f"{tmp_path.name}-beside")
    with serving_folder(tmp_path) as client:
        listed = client.get("/api/v1/runs").json()
        names = {row["name"] for row in listed["runs"]}
        assert names == {"old one", "repeat~1"}
        assert (listed["foreign"], listed["loading"], listed["unreadable"]) == (2, [], [])
        for name in names:
            status = client.get(f"/api/v1/runs/{name}/status")
            assert status.json()["state"] == "ended"
        assert client.get("/api/v1/status").status_code == 404, "which of them?"
        assert client.get("/api/v1").json()["run"] is None
        assert "/api/v1/runs/{run}/trials/{trial}" in client.get("/openapi.json").json()["paths"]


def test_a_run_that_ended_with_a_report_is_listed_without_its_records(tmp_path: Path) -> None:
    paths = write_run(tmp_path / "a", SMALL)
    write_report(RunView.read(paths))
    paths.replica_journal("r0").unlink()
    runs = FolderOfRuns(tmp_path)
    (row,) = runs.list().runs
    assert (row.name, row.state) == ("a", "ended")
    assert runs.known("a") is None, "nothing was read for it"


def test_a_list_does_not_reread_ended_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_report(RunView.read(write_run(tmp_path / "a", SMALL)))
    runs = FolderOfRuns(tmp_path, Readers(PATIENCE_SECONDS, PATIENCE_SECONDS))
    with serving(runs) as client:
        assert client.get("/api/v1/runs/a/status").status_code == 200
        monkeypatch.setattr(runs.find("a"), "row", lambda: pytest.fail("it was asked"))
        (row,) = client.get("/api/v1/runs").json()["runs"]
    assert row["state"] == "ended"


def test_a_run_that_begins_later_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiperf_hpc.service.runs.LOOK_SECONDS", 0.0)
    with serving_folder(tmp_path) as client:
        assert client.get("/api/v1/runs").json()["runs"] == []
        assert client.get("/api/v1/runs/a/status").status_code == 404
        write_run(tmp_path / "a", SMALL)
        assert client.get("/api/v1/runs/a/status").status_code == 200


@pytest.mark.parametrize("name", ["none", "..", "%2e%2e", "..%2fa", "a%00", ".hidden"])
def test_what_is_no_run_is_not_found(tmp_path: Path, name: str) -> None:
    write_run(tmp_path / "runs" / "a", SMALL)
    write_run(tmp_path / "runs" / ".hidden", SMALL)
    (tmp_path / "run.yaml").write_text("secret")
    with serving_folder(tmp_path / "runs") as client:
        answer = client.get(f"/api/v1/runs/{name}/status")
    assert answer.status_code == 404
    problem = Problem.model_validate(answer.json())
    assert problem.status == 404
    assert str(tmp_path) not in answer.text


def test_a_damaged_run_among_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiperf_hpc.service.runs.LOOK_SECONDS", 0.0)
    for name in ("good", "bad manifest", "torn", "no start"):
        write_run(tmp_path / name, SMALL)
    without_start(RunPaths(tmp_path / "no start").primary_journal)
    (tmp_path / "bad manifest" / "run.yaml").write_text("{")
    journal = RunView.read(write_run(tmp_path / "away", SMALL)).paths.replica_journal("r0")
    with (tmp_path / "torn" / journal.relative_to(tmp_path / "away")).open("ab") as file:
        file.write(b"no record\n")
    with serving_folder(tmp_path) as client:
        listed = client.get("/api/v1/runs").json()
        assert {row["name"] for row in listed["runs"]} == {"good", "torn", "away"}
        unreadable = {each["name"]: each["reason"] for each in listed["unreadable"]}
        assert unreadable.keys() == {"bad manifest", "no start"}
        assert "run.yaml" in unreadable["bad manifest"]
        assert "no record of the run's start" in unreadable["no start"]
        assert 'aiperf_runs{state="unreadable"} 2.0' in client.get("/metrics").text
        assert client.get("/api/v1/runs/no start/status").status_code == 503
        (problem,) = client.get("/api/v1/runs/torn/status").json()["problems"]
        assert "not a record" in problem
        assert client.get("/api/v1/runs/bad manifest/status").status_code == 503

        assert client.get("/api/v1/runs/away/score").status_code == 200
        (tmp_path / "away").rename(tmp_path / ".elsewhere")
        reasons = {u["name"]: u["reason"] for u in client.get("/api/v1/runs").json()["unreadable"]}
        assert "the run directory of away is missing; restore it" in reasons["away"]
        (tmp_path / ".elsewhere").rename(tmp_path / "away")
        assert client.get("/api/v1/runs/away/score").status_code == 200


def test_a_replaced_run_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiperf_hpc.service.runs.LOOK_SECONDS", 0.0)
    monkeypatch.setattr("aiperf_hpc.results.views.cached_view.FRESH_SECONDS", 0.0)
    write_run(tmp_path / "a", SMALL)
    runs = FolderOfRuns(tmp_path, Readers(PATIENCE_SECONDS, PATIENCE_SECONDS))
    with serving(runs) as client:
        assert len(client.get("/api/v1/runs/a/replicas").json()["replicas"]) == 1
        first = runs.find("a")
        (tmp_path / "a").rename(tmp_path / ".away")
        write_run(tmp_path / "a", Plan(replicas=2, trials=1, hpo_trials=0))
        runs.lost(first)
        assert len(client.get("/api/v1/runs/a/replicas").json()["replicas"]) == 2
