"""Several runs beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from tests.service.serving import serving_folder
from tests.support.run_factory import Plan, write_run

SMALL = Plan(replicas=1, trials=2, hpo_trials=0)


def _compared(folder: Path, *names: str) -> Any:  # noqa: ANN401
    with serving_folder(folder) as client:
        answer = client.get("/api/v1/compare", params={"run": names})
        assert answer.status_code == 200, answer.text
        return answer.json()


def test_what_differs_is_named_and_what_does_not_compare_too(tmp_path: Path) -> None:
    write_run(tmp_path / "a", SMALL)
    other = write_run(tmp_path / "b", Plan(replicas=2, trials=1, hpo_trials=0, ended=False))
    values = yaml.safe_load(other.manifest.read_text())
    values["config"]["training"]["batch_size"] = 17
    other.manifest.write_text(yaml.safe_dump(values))
    found = _compared(tmp_path, "a", "b")
    assert [each["runs"] for each in found["sides"]] == [["a"], ["b"]]
    assert found["configuration"]["training.batch_size"][1] == 17
    assert [line.partition(" on ")[0] for line in found["hardware"]["size"]] == [
        "1 replica",
        "2 replicas",
    ]
    assert not found["comparable"]
    assert "b has not ended" in found["reasons"]


def test_a_comparison_needs_two_runs_that_there_are(tmp_path: Path) -> None:
    write_run(tmp_path / "a", SMALL)
    with serving_folder(tmp_path) as client:
        assert client.get("/api/v1/compare", params={"run": "a"}).status_code == 422
        assert client.get("/api/v1/compare", params={"run": ["a", "a"]}).status_code == 422
        assert client.get("/api/v1/compare", params={"run": ["a", "none"]}).status_code == 404
