"""``aiperf workloads``, and a start by a workload's name."""

from __future__ import annotations

import json

import pytest

from aiperf_hpc.cli import main
from aiperf_hpc.config import preset_names
from aiperf_hpc.workloads.registry import WORKLOADS

START = ("start", "--nodes", "1", "--hours", "1", "--launcher", "local", "--dry-run", "--yes")


def test_the_table_has_each_workload_with_its_counts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["workloads"]) == 0
    out = capsys.readouterr().out
    rows = {name: next(line for line in out.splitlines() if f" {name} " in line[:20])
            for name in WORKLOADS}  # fmt: skip
    assert "8,907,556" in rows["cosmoflow"]
    assert "mean absolute error <= 0.124" in rows["cosmoflow"]
    assert "25,557,032" in rows["automl"]
    assert "25,559,081" in rows["resnet50-v1.5"]


@pytest.mark.parametrize("name", WORKLOADS)
def test_all_of_a_workload_is_said_and_is_in_its_json(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["workloads", name]) == 0
    out = capsys.readouterr().out
    said = " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    assert main(["workloads", name, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    for key in ("benchmark", "task", "network", "data", "target", "scoring"):
        assert f"{key} {document[key]}" in said
    for setting, value in document["closed"].items():
        assert f"{setting}: {value}" in said
    for found in document["networks"]:
        assert f"{found['parameters']:,} parameters" in said
        assert f"{found['training']:,} a training sample" in said
    assert document["presets"] == [p for p in document["presets"] if p in preset_names()]


def test_a_workload_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["workloads", "cosmo"], [*START, "--workload", "cosmo"]):
        assert main(list(words)) == 2
        said = capsys.readouterr().err
        assert said.startswith("aiperf: no workload 'cosmo'; did you mean 'cosmoflow'?")
        assert said.count("\n") == 1


def test_a_workload_starts_its_first_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*START, "--workload", "cosmoflow"]) == 0
    assert "-cosmoflow-" in capsys.readouterr().out
    assert main([*START]) == 0
    assert "-quickstart-" in capsys.readouterr().out


def test_a_configuration_of_another_workload_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*START, "--workload", "cosmoflow", "--config", "volumes"]) == 2
    assert capsys.readouterr().err == (
        "aiperf: --workload cosmoflow: volumes is of the workload volumes; leave one of them out\n"
    )
