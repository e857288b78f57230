"""The score and the energy are those of the records, and no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks import synthetic_run
from tests.support.clock import START, Clock
from tests.support.rules import check_rule
from tests.support.telemetry import PACKAGE, equipment, sample

from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import TelemetrySampled, TelemetryStarted
from aiperf_hpc.telemetry.values import Equipment
from aiperf_hpc.verification.audit import evidence_of


def tell(paths: RunPaths, rank: int, own: Equipment, joules: tuple[float, ...]) -> None:
    """Write two samples of a node, and one from after the run's end."""
    clock = Clock(START + 1.0)
    journal = paths.telemetry_journal("r0", rank)
    with JournalWriter(journal, clock=clock) as writer:
        writer.append(TelemetryStarted(equipment=own))
        for seconds in (30.0, 30.0, 1e7):
            clock.advance(seconds)
            writer.append(TelemetrySampled(sample=sample(joules)))


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    paths = synthetic_run.write_run(tmp_path / "run", 1, distinct=2).paths
    tell(paths, 1, equipment("n1"), (12_000.25, 15_000.0, 6_000.0))
    tell(paths, 2, equipment("n2", (PACKAGE,)), (500.5,))
    write_report(RunView(paths))
    return paths


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("operations", lambda _: 1),
        ("ops", lambda _: None),
        ("ops", lambda ops: ops * (1.0 + 1e-11)),  # Compared to its last digits.
        ("ops", lambda ops: ops * (1.0 - 1e-11)),
        ("regulated", lambda _: None),
    ],
)
def test_a_score_that_is_not_the_recounts_is_found(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch, key: str, change: Callable[[Any], object]
) -> None:
    evidence = evidence_of(RunView(run))
    assert check_rule("score", evidence).passed
    final = evidence.report.score()
    stated = final | {key: change(final[key])}
    monkeypatch.setattr(evidence, "report", replace(evidence.report, score=lambda: stated))
    (failure,) = check_rule("score", evidence).failures
    assert failure.startswith(f"the score now has {key} {stated[key]}, recounted ")


def test_the_last_digits_of_a_score_may_differ(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = evidence_of(RunView(run))
    final = evidence.report.score()
    stated = final | {key: final[key] * (1.0 + 1e-13) for key in ("ops", "regulated")}
    assert stated != final
    monkeypatch.setattr(evidence, "report", replace(evidence.report, score=lambda: stated))
    assert check_rule("score", evidence).passed


def test_samples_until_the_end_are_summed(run: RunPaths) -> None:
    document = json.loads(run.report_json.read_bytes())
    energy = document["telemetry"]["energy"]
    assert energy["parts"]["accelerators"]["joules"] == 2 * 27_000.25
    assert energy["parts"]["processors"]["joules"] == 2 * 6_500.5
    assert check_rule("energy", run).passed


def test_an_energy_that_was_changed_is_found(run: RunPaths) -> None:
    document = json.loads(run.report_json.read_bytes())
    document["telemetry"]["energy"]["parts"]["processors"]["joules"] = 1.0
    document["telemetry"]["energy"]["joules"] = 54_001.5
    run.report_json.write_text(json.dumps(document))
    assert check_rule("energy", run).failures == (
        "report.json states 1.0 J of the processors, the samples sum up to 13001.0",
        "report.json states 54001.5 J, the samples sum up to 67001.5",
    )


@pytest.mark.parametrize(
    ("stated", "failure"),
    [
        (5.0, "report.json states an energy of no known form"),
        ({"parts": []}, "report.json states an energy of no known form"),
        ({"parts": {"processors": 5.0}},
         "report.json states None J of the processors, the samples sum up to 13001.0"),
    ],
)  # fmt: skip
def test_an_energy_of_another_form_is_found(run: RunPaths, stated: object, failure: str) -> None:
    document = json.loads(run.report_json.read_bytes())
    document["telemetry"]["energy"] = stated
    run.report_json.write_text(json.dumps(document))
    assert check_rule("energy", run).failures[0] == failure


def test_of_two_that_sampled_a_node_at_once_one_is_counted(run: RunPaths) -> None:
    tell(run, 3, equipment("n2", (PACKAGE,)), (500.5,))
    run.report_json.unlink()
    for file in run.report.iterdir():
        file.unlink()
    write_report(RunView(run))
    document = json.loads(run.report_json.read_bytes())
    assert document["telemetry"]["energy"]["joules"] == 67_001.5
    assert check_rule("energy", run).passed
