"""The scaling study and Valid FLOPS of MLPerf HPC v0.7's public logs, with published figures."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from scipy import stats
from tests.support.result_logs import unpacked

from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.readers.sources import read_sources
from aiperf_hpc.analysis.sections.scaling_study import ScalingStudies, scaling_studies
from aiperf_hpc.analysis.sections.valid_flops import valid_flops_table
from aiperf_hpc.analysis.training_log import Entry
from aiperf_hpc.cli import main

COSMOFLOW = ("corigpu_n64_tf1.15.0", "abci_512xV100_tensorflow_closed")
DEEPCAM = "abci_1024xV100_pytorch_closed"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("v0.7")
    for name in (*COSMOFLOW, DEEPCAM):
        unpacked(folder, "0.7", name)
    return folder


@pytest.fixture(scope="module")
def entries(folder: Path) -> tuple[Entry, ...]:
    return read_sources([folder]).entries


@pytest.fixture(scope="module")
def studies(entries: tuple[Entry, ...]) -> ScalingStudies:
    return scaling_studies(entries, Options())


def test_the_study_has_the_published_figures(studies: ScalingStudies) -> None:
    """MLPerf HPC's table, but for 34.34 min, where the paper prints 34.42."""
    (study,) = studies.studies[:1]
    cori, abci = study.points
    assert (cori.accelerators, abci.accelerators) == (64, 512)
    assert f"{cori.throughput_each:.2f} {abci.throughput_each:.2f}" == "12.07 26.59"
    said = [
        f"{spread.mean:.2f} ± {spread.deviation:.2f}"
        for point in (cori, abci)
        for spread in (point.minutes, point.epochs)
        if spread
    ]
    assert said == ["364.73 ± 32.77", "53.88 ± 4.85", "34.34 ± 4.03", "100.00 ± 13.50"]
    assert abci.efficiency == pytest.approx(26.59 / 12.07, rel=1e-3)
    assert abci.time_efficiency == pytest.approx(364.73 / 34.34 / 8, rel=1e-3)
    assert "may differ" in study.notes[0]
    law = study.epochs_by_batch
    assert law is not None
    assert law.exponent == pytest.approx(math.log(100.00 / 53.88) / math.log(8), abs=0.01)
    (work,) = study.equal_work
    assert work.local_batch_size == 1.0
    assert work.minutes.at(512).value == pytest.approx(34.34, rel=0.02)
    assert all(one.minutes.low is None for one in work.predictions)


def test_flops_are_throughput_times_the_networks_count(
    entries: tuple[Entry, ...], folder: Path
) -> None:
    """Of all trainings: nearly what the published means of those that count give."""
    abci, cori, deepcam = valid_flops_table(entries, Options()).rows
    assert deepcam.flops == pytest.approx(5.24 * 1024 * 1_963_974_567_936, rel=0.005)
    assert abci.flops == pytest.approx(26.59 * 512 * 56_933_533_184, rel=0.01)
    assert cori.flops == pytest.approx(12.07 * 64 * 56_933_533_184, rel=0.01)
    # One log of ABCI's says success without a quality at the target.
    assert (abci.reached, abci.trainings) == (9, 10)
    last = [_last_accuracy(path) for path in sorted((folder / DEEPCAM).rglob("result_*.txt"))]
    assert (deepcam.exponent, deepcam.reached, deepcam.trainings) == (10, 5, 5)
    assert deepcam.quality == pytest.approx(sum(last) / 5)
    weighted = deepcam.flops * stats.pmean(last, 10) ** 10 / 0.82**10
    assert deepcam.vflops == pytest.approx(weighted, rel=1e-3)


def test_the_analysis_has_both_sections_as_text_and_json(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", str(folder), "--scale", "128", "--vflops-exponent", "1"]) == 0
    said = capsys.readouterr().out
    assert "predicted at 1 samples per accelerator and step" in said
    assert any(line.split()[:2] == ["128", "128"] for line in said.splitlines())
    assert "n = 1 (chosen)" in said
    assert main(["analyze", str(folder), "--json"]) == 0
    sections = json.loads(capsys.readouterr().out)["sections"]
    assert {"scaling_study", "valid_flops"} <= set(sections)


def _last_accuracy(path: Path) -> float:
    lines = [line for line in path.read_text("utf-8").splitlines() if '"eval_accuracy"' in line]
    return float(json.loads(lines[-1].split(":::MLLOG ", 1)[1])["value"])
