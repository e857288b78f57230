"""Several runs beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from tests.service.serving import serving
from tests.support.run_factory import Plan, write_run
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.service.runs import FolderOfRuns
from aiperf_hpc.service.served_run import Readers

SMALL = Plan(replicas=1, trials=2, hpo_trials=0)


def _compared(folder: Path, *names: str) -> Any:  # noqa: ANN401
    with serving(FolderOfRuns(folder, Readers(PATIENCE_SECONDS, PATIENCE_SECONDS))) as client:
        answer = client.get("/api/v1/compare", params={"run": names})
        assert answer.status_code == 200, answer.text
        return answer.json()


def test_a_run_is_like_itself(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, SMALL)
    found = _compared(tmp_path, "a", "b")
    assert [each["runs"] for each in found["sides"]] == [["a"], ["b"]]
    ops = [each["figures"]["ops"]["mean"] for each in found["sides"]]
    assert ops[0] == ops[1] > 0.0
    assert abs(sum(found["sides"][0]["time_shares"].values()) - 1.0) < 1e-9
    assert (found["configuration"], found["hardware"], found["comparable"]) == ({}, {}, True)


def test_what_differs_is_named_and_what_does_not_compare_too(tmp_path: Path) -> None:
    write_run(tmp_path / "a", SMALL)
    other = write_run(tmp_path / "b", Plan(replicas=2, trials=1, hpo_trials=0, ended=False))
    values = yaml.safe_load(other.manifest.read_text())
    values["config"]["training"]["batch_size"] = 17
    other.manifest.write_text(yaml.safe_dump(values))
    found = _compared(tmp_path, "a", "b")
    assert found["configuration"]["training.batch_size"][1] == 17
    assert [line.partition(" on ")[0] for line in found["hardware"]["size"]] == [
        "1 replica",
        "2 replicas",
    ]
    assert not found["comparable"]
    assert "b has not ended" in found["reasons"]


def test_a_comparison_needs_two_runs_that_there_are(tmp_path: Path) -> None:
    write_run(tmp_path / "a", SMALL)
    with serving(FolderOfRuns(tmp_path, Readers(PATIENCE_SECONDS, PATIENCE_SECONDS))) as client:
        assert client.get("/api/v1/compare", params={"run": "a"}).status_code == 422
        assert client.get("/api/v1/compare", params={"run": ["a", "a"]}).status_code == 422
        assert client.get("/api/v1/compare", params={"run": ["a", "none"]}).status_code == 404
