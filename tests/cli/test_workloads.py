"""``aiperf workloads``, and a start by a workload's name."""

from __future__ import annotations

import json

import pytest
from tests.support.command import printed
from tests.support.refusals import refused_line

from aiperf_hpc.config import preset_names
from aiperf_hpc.workloads.registry import WORKLOADS

START = ("start", "--nodes", "1", "--hours", "1", "--launcher", "local", "--dry-run", "--yes")


def test_the_table_has_each_workload_with_its_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    out = printed("workloads")
    rows = {name: next(line for line in out.splitlines() if f" {name} " in line[:20])
            for name in WORKLOADS}  # fmt: skip
    assert "8,907,556" in rows["cosmoflow"]
    assert "mean absolute error <= 0.124" in rows["cosmoflow"]
    assert "25,557,032" in rows["automl"]
    assert "25,559,081" in rows["resnet50-v1.5"]


@pytest.mark.parametrize("name", WORKLOADS)
def test_all_of_a_workload_is_said_and_is_in_its_json(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = printed("workloads", name)
    said = " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    document = json.loads(printed("workloads", name, "--json"))
    for key in ("benchmark", "task", "network", "data", "target", "scoring"):
        assert f"{key} {document[key]}" in said
    for setting, value in document["closed"].items():
        assert f"{setting}: {value}" in said
    for found in document["networks"]:
        assert f"{found['parameters']:,} parameters" in said
        assert f"{found['training']:,} a training sample" in said
    assert document["presets"] == [p for p in document["presets"] if p in preset_names()]


def test_a_workload_that_is_not_there_is_refused() -> None:
    for words in (("workloads", "cosmo"), (*START, "--workload", "cosmo")):
        said = refused_line(*words)
        assert said.startswith("no workload 'cosmo'; did you mean 'cosmoflow'?")


def test_a_workload_starts_its_first_preset() -> None:
    assert "-cosmoflow-" in printed(*START, "--workload", "cosmoflow")
    assert "-quickstart-" in printed(*START)


def test_a_configuration_of_another_workload_is_refused() -> None:
    assert refused_line(*START, "--workload", "cosmoflow", "--config", "volumes") == (
        "--workload cosmoflow: volumes is of the workload volumes; leave one of them out"
    )
