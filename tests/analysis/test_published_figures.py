"""Every printed digit of the figures that MLPerf HPC published of the logs in tests/data."""

from __future__ import annotations

import json
import math
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest
from scipy import stats
from tests.support.result_logs import unpacked

from aiperf_hpc.analysis.analysis import Analysis, EntryMetrics, analyze
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.readers.sources import read_sources
from aiperf_hpc.analysis.sections.reference_convergence import ReferenceConvergence
from aiperf_hpc.analysis.sections.scaling_study import scaling_studies
from aiperf_hpc.analysis.sections.valid_flops import valid_flops_table
from aiperf_hpc.analysis.sections.weak_scaling import WeakScalings
from aiperf_hpc.analysis.training_log import Entry
from aiperf_hpc.cli import main

CORI = "corigpu_n64_tf1.15.0"
ABCI = "abci_512xV100_tensorflow_closed"
DEEPCAM = "abci_1024xV100_pytorch_closed"
OPEN = "abci_1024xV100_fjpytorch_open"
V07 = {
    CORI: {
        "time_to_solution": "364.73 ± 32.77", "staging": "16.49 ± 0.61",
        "staging_in_epochs": "2.55", "epochs": "53.88 ± 4.85",
        "train_throughput": "12.07 ± 0.09", "eval_throughput": "21.17 ± 0.56",
    },
    ABCI: {
        # The paper prints 34.42, a slip: the deviation beside it is that of 34.34.
        "time_to_solution": "34.34 ± 4.03", "staging": "0.76",
        "staging_in_epochs": "2.27", "epochs": "100.00 ± 13.50",
        "train_throughput": "26.59 ± 0.90", "eval_throughput": "151.88 ± 0.68",
    },
    DEEPCAM: {
        "time_to_solution": "11.71 ± 0.02", "staging": "2.20",
        "staging_in_epochs": "5.55", "epochs": "24.00",
        "train_throughput": "5.24 ± 0.02", "eval_throughput": "7.37 ± 0.01",
    },
    OPEN: {
        "time_to_solution": "10.49 ± 0.23", "staging": "1.96",
        "staging_in_epochs": "5.45", "epochs": "23.67",
        "train_throughput": "5.57 ± 0.13", "eval_throughput": "4.67 ± 0.82",
    },
}  # fmt: skip
"""Farrell et al. 2021, tables of the results of v0.7, by entry."""


def analysed(folder: Path, round_: str, name: str) -> Analysis:
    reading = read_sources([unpacked(folder, round_, name)])
    assert not reading.unreadable
    return analyze(reading, Options())


def measured(folder: Path, round_: str, name: str) -> EntryMetrics:
    (measures,) = analysed(folder, round_, name).metrics
    return measures


def printed(value: float, digits: str) -> str:
    """Round half up, as people do, to the digits of a printed number."""
    return str(Decimal(repr(value)).quantize(Decimal(digits), ROUND_HALF_UP))


@pytest.mark.parametrize("name", V07)
def test_every_printed_digit_of_v07_is_reached(name: str, tmp_path: Path) -> None:
    measures = measured(tmp_path, "0.7", name).metrics
    for measure, published in V07[name].items():
        average, _, deviation = published.partition(" ± ")
        assert printed(measures[measure].mean, average) == average, measure
        if deviation:
            assert printed(measures[measure].deviation or 0.0, deviation) == deviation, measure


def test_the_time_of_v10_is_its_rounds_own_summary(tmp_path: Path) -> None:
    measures = measured(tmp_path, "1.0", "nvidia_dgxa100_n16_cosmoflow_strong").metrics
    assert printed(measures["time_to_solution"].mean, "0.000001") == "25.781025"


@pytest.mark.parametrize(
    ("round_", "name", "models"),
    [
        ("1.0", "lbnl_perlmutter_10x128x4_cosmoflow_weak", 10),
        ("2.0", "helmholtzai_horeka_n64_deepcam_weak", 8),
    ],
)
def test_weak_scaling_is_from_the_first_start_to_the_last_stop(
    round_: str, name: str, models: int, tmp_path: Path
) -> None:
    weak = analysed(tmp_path, round_, name).sections["weak_scaling"]
    assert isinstance(weak, WeakScalings)
    (entry,) = weak.entries
    times = [
        json.loads(text.partition(":::MLLOG ")[2])["time_ms"]
        for path in (tmp_path / name).rglob("result_*.txt")
        for text in path.read_text().splitlines()
        if '"run_start"' in text or '"run_stop"' in text
    ]
    assert len(times) == 2 * models == 2 * entry.instances
    minutes = (max(times) - min(times)) / 60_000
    assert entry.minutes == pytest.approx(minutes)
    assert entry.models_per_minute == pytest.approx(models / minutes)
    assert (entry.failed, entry.pruned, entry.problems) == (0, 0, ())


def test_openfolds_scaling_factor_is_that_of_its_scaling_json(tmp_path: Path) -> None:
    """The checker that made the file divided the reference at batch 144 by the entry's mean."""
    found = analysed(tmp_path, "3.0", "clemson_18xR750_openfold_strong")
    convergence = found.sections["reference_convergence"]
    assert isinstance(convergence, ReferenceConvergence)
    (row,) = convergence.rows
    assert row.factor == row.submitted == 1.0231481481481484
    assert (row.verdict, row.interpolated) == ("faster, within chance", True)
    (measures,) = found.metrics
    time = measures.metrics["time_to_solution"]
    scaled = measures.metrics["scaled_time_to_solution"]
    assert scaled.mean == pytest.approx(1.0231481481481484 * time.mean)


def test_entries_of_all_rounds_have_their_descriptions(tmp_path: Path) -> None:
    """All rounds at once: the entries' names, rounds, divisions, sizes and accelerators."""
    for round_, name in (
        ("0.7", CORI), ("0.7", OPEN), ("1.0", "lbnl_perlmutter_10x128x4_cosmoflow_weak"),
        ("2.0", "helmholtzai_horeka_n64_deepcam_weak"),
        ("3.0", "clemson_18xR750_openfold_strong"),
    ):  # fmt: skip
        unpacked(tmp_path, round_, name)
    entries = {entry.name: entry for entry in read_sources([tmp_path]).entries}
    assert {name: (entry.round, entry.division) for name, entry in entries.items()} == {
        "LBNL corigpu_n64_tf1.15.0 cosmoflow": ("hpc-0.7", "closed"),
        "Fujitsu abci_1024xV100_fjpytorch_open deepcam": ("hpc-0.7", "open"),
        "LBNL perlmutter_10x128x4_ngc21.09_mxnet cosmoflow weak": ("hpc-1.0", "closed"),
        "HelmholtzAI horeka_gpu_n64_pytorch1.13 deepcam weak": ("hpc-2.0", "closed"),
        "Clemson 18xR750-2xA100-PCIe-80GB openfold": ("hpc-3.0", "closed"),
    }
    fujitsu, clemson, cori, weak, _ = entries.values()
    assert (cori.system.accelerators, len(cori.logs)) == (64, 10)
    assert any("64 accelerators by its name" in problem for problem in cori.problems)
    assert any("its logs state closed" in problem for problem in fujitsu.problems)
    assert (weak.system.accelerators, weak.logs[0].accelerators) == (512, 64)
    assert clemson.system.accelerator == "NVIDIA A100 - PCIe - 80 GB"
    assert clemson.organization == "Clemson"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("v0.7")
    for name in (CORI, ABCI, DEEPCAM):
        unpacked(folder, "0.7", name)
    return folder


@pytest.fixture(scope="module")
def entries(folder: Path) -> tuple[Entry, ...]:
    return read_sources([folder]).entries


def test_the_scaling_study_has_the_published_figures(entries: tuple[Entry, ...]) -> None:
    study = scaling_studies(entries, Options()).studies[0]
    cori, abci = study.points
    assert (cori.accelerators, abci.accelerators) == (64, 512)
    assert f"{cori.throughput_each:.2f} {abci.throughput_each:.2f}" == "12.07 26.59"
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


def test_the_command_takes_scales_and_an_exponent(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", str(folder), "--scale", "128", "--vflops-exponent", "1"]) == 0
    text = capsys.readouterr().out
    assert "predicted at 1 samples per accelerator and step" in text
    assert any(line.split()[:2] == ["128", "128"] for line in text.splitlines())
    assert "n = 1 (chosen)" in text
    assert main(["analyze", str(folder), "--json"]) == 0
    sections = json.loads(capsys.readouterr().out)["sections"]
    assert {"scaling_study", "valid_flops"} <= set(sections)


def test_parts_of_the_time_add_up_to_it(tmp_path: Path) -> None:
    metrics = measured(tmp_path, "0.7", CORI).metrics
    parts = [metrics[name] for name in ("staging", "compute", "extra")]
    whole = metrics["time_to_solution"]
    assert math.fsum(part.mean for part in parts) == pytest.approx(whole.mean)
    assert {part.scored for part in parts} == {whole.scored}


def _last_accuracy(path: Path) -> float:
    lines = [line for line in path.read_text("utf-8").splitlines() if '"eval_accuracy"' in line]
    return float(json.loads(lines[-1].split(":::MLLOG ", 1)[1])["value"])
