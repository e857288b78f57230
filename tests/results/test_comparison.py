"""Runs side by side: what differs, whether scores compare, and how repeated runs vary."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.command import aiperf, printed
from tests.support.refusals import refused_line
from tests.support.run_factory import Plan, write_run

from aiperf_hpc.ops_counter.score import ScoreStatus
from aiperf_hpc.results.comparison import Comparison, compare, differences, read_groups
from aiperf_hpc.results.report.document import make_report
from aiperf_hpc.results.views.run_catalog import flat
from aiperf_hpc.results.views.run_view import RunState, RunView
from aiperf_hpc.results.views.time_split import UNRECORDED
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.streams import width

LONG = ScoreStatus(
    elapsed_seconds=1e6, operations=1, ops=1e-6, error=None, regulated_error=None, regulated=None
)
PLAN = Plan(replicas=1, trials=2, hpo_trials=0, failed=0, epochs=1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one configuration, and two that repeat each other with another batch size."""
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "a", PLAN)
    write_run(folder / "b", PLAN)
    other = Plan(**{**vars(PLAN), "config": {"training": {"batch_size": 32, "precision": "fp32"}}})
    for number in (1, 2):
        write_run(folder / "c" / str(number), Plan(**{**vars(other), "seed": number}))
    return folder


def test_equal_runs_are_comparable_and_differ_in_nothing(runs: Path) -> None:
    found = compare(read_groups([runs / "a", runs / "b"]))
    assert found.comparable
    assert (found.configuration, found.hardware, found.versions) == ({}, {}, {})
    (first, second) = found.sides
    assert first.figures == second.figures
    assert sum(first.time_fractions.values()) == pytest.approx(1.0)
    assert any("+0.0% OPS" in note and "within the 5%" in note for note in found.notes)


def test_the_time_by_phase_is_the_reports(runs: Path) -> None:
    """Unrecorded time is part of it, so that a phase has one percentage on all pages."""
    found = compare(read_groups([runs / "a", runs / "b"]))
    view = RunView.read(RunPaths(runs / "a"))
    phases = make_report(view).time.phases
    assert phases[UNRECORDED].fraction > 0.0
    assert found.sides[0].time_fractions == {name: phase.fraction for name, phase in phases.items()}


def test_repeated_runs_are_one_side_with_a_spread(runs: Path) -> None:
    groups = read_groups([runs / "a", runs / "c"])
    found = compare(groups)
    one, two = (run.score.ops for run in groups[str(runs / "c")])
    ops = found.sides[1].figures["ops"]
    assert ops is not None
    mean = (one + two) / 2
    assert ops.runs == 2
    assert ops.mean == pytest.approx(mean)
    assert ops.variation == pytest.approx(abs(one - two) / 2**0.5 / mean)
    assert found.configuration == {"training.batch_size": (64, 32)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"state": RunState.RUNNING}, "has not ended"),
        ({"dataset_hashes": "cifar10 0123"}, "the dataset differs: digits .*, cifar10 0123"),
        ({"score": LONG}, "durations range from"),
        ({"violated_rules": ("engine",)}, "nothing was computed in"),
        ({"violated_rules": ()}, "is INVALID .*, and others are valid"),
        ({"settings": {"model.stem": "imagenet"}}, "model.stem differs"),
    ],
    ids=str,
)
def test_what_scores_are_not_comparable_by(
    runs: Path, change: dict[str, object], reason: str
) -> None:
    facts = read_groups([runs / "a", runs / "b"])[str(runs / "a")][0]
    other = facts.model_copy(update=change)
    found = compare({"a": [facts], "b": [other]})
    assert not found.comparable
    assert any(re.search(reason, said) for said in found.reasons)
    assert not any("OPS" in note for note in found.notes), "no difference of what does not compare"


def test_what_is_not_in_all_differs() -> None:
    assert differences([{"a": 1, "b": 2}, {"b": 2}]) == {"a": (1, None)}
    assert flat({"a": {"b": 1, "c": {"d": 2}}, "e": [3]}) == {"a.b": 1, "a.c.d": 2, "e": [3]}


@pytest.mark.parametrize("columns", [40, 80])
def test_the_text_fits_the_window(
    columns: int, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.chdir(runs)
    text = aiperf("compare", "a", "c").stdout
    assert max(map(width, text.splitlines())) <= columns
    assert "training.batch_size" in text or columns == 40


def test_json_and_refusals(runs: Path) -> None:
    said = printed("compare", runs / "a", runs / "b", "--json")
    assert Comparison.model_validate_json(said).comparable
    assert "name at least two runs" in refused_line("compare", runs / "a")
    assert "is named twice" in refused_line("compare", runs / "a", runs / "a")
