"""What happens to honest runs contradicts no rule: suspended machines, clocks that are set."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from benchmarks import synthetic_run
from tests.forgery.forger import REPLICAS, ForgedRun, at, of
from tests.forgery.omissions import complete, make_digests_again
from tests.support.heads import HeadedRun
from tests.support.host_clocks import clocks
from tests.support.rules import check_rule, verify
from tests.support.run_writer import progress, replica_started
from tests.support.simulation import simulated_run

from aiperf_hpc.primary.control.resume import lost_before_resume
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.registry import CONSISTENCY
from aiperf_hpc.rules.rule import RuleResult
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.paths import Incarnation
from aiperf_hpc.run.records import FileProblem, NodeChecked

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \| `(tests/[^|`]+\.py)::(test_\w+)` \|$", re.MULTILINE)


@pytest.fixture
def run(tmp_path: Path) -> ForgedRun:
    return ForgedRun(synthetic_run.write_run(tmp_path / "run", 3, distinct=2).paths)


def step(run: ForgedRun, seconds: float) -> None:
    """Set the clock of r0's host, in the middle of the run."""
    lines = run.trainer()
    at = lines[len(lines) // 2]["utc"]
    for line in (*lines, *run.search()):
        line["utc"] += seconds if line["utc"] > at else 0.0


def read_clocks(run: ForgedRun) -> None:
    """Let all processes that read their clocks have done so, at their start and end."""
    for lines in (run.primary, *map(run.trainer, REPLICAS)):
        for line, place in ((lines[0], 1), (lines[-1], -1)):
            reading = clocks(line["utc"], line["mono"])
            lines.insert(place, {**line, "event": reading.model_dump(mode="json")})


def found(run: ForgedRun) -> dict[str, RuleResult]:
    """Return what verify finds of the run, whose report is made once more."""
    run.reseal()
    return {finding.rule: finding for finding in verify(RunView(run.paths))}


def failed(run: ForgedRun) -> set[str]:
    return {rule for rule, finding in found(run).items() if not finding.passed}


@pytest.mark.parametrize("seconds", [300.0, 40.0])
def test_a_machine_that_was_suspended_or_whose_clock_was_set_forward_is_noted(
    run: ForgedRun, seconds: float
) -> None:
    step(run, seconds)
    assert failed(run) == set()
    (trainer, *_) = found(run)["clocks"].notes
    assert trainer.endswith("the clock was set, or its machine suspended")
    assert f"{seconds:.3f} s off" in trainer


def test_a_clock_that_was_set_back_is_noted_if_its_readings_show_it(run: ForgedRun) -> None:
    step(run, -40.0)
    assert "clocks" in failed(run)
    read_clocks(run)
    assert failed(run) == set()
    (said,) = found(run)["timekeeping"].notes
    assert re.search(r"UTC ran \S+ s while the uptime advanced \S+ s", said)


def test_a_clock_that_was_set_back_is_noted_if_its_process_was_killed_before_a_reading(
    run: ForgedRun,
) -> None:
    """Its last trial, without an end, appears to have begun before the one that ended."""
    step(run, -400.0)
    read_clocks(run)
    lines = run.trainer()
    del lines[-2]
    assert "clocks" in failed(run)  # One that ended in order would have read them.
    del lines[at(lines, "training_started", 4) + 1 :]
    assert failed(run) == set()


def test_a_run_whose_clock_was_set_back_to_before_its_start_states_no_time(run: ForgedRun) -> None:
    middle = run.primary[len(run.primary) // 2]["utc"]
    for line in (line for lines in run.everywhere() for line in lines):
        line["utc"] -= 1439.0 if line["utc"] >= middle else 0.0
    read_clocks(run)
    assert run.primary[-1]["utc"] < run.primary[0]["utc"]
    assert failed(run) == set()


@pytest.mark.parametrize("seconds", [30.0, -30.0])
def test_hosts_whose_clocks_are_apart_by_what_the_primary_saw_break_no_rule(
    run: ForgedRun, seconds: float
) -> None:
    for line in (*run.trainer(), *run.search()):
        line["utc"] += seconds
    started, primary = run.trainer()[0], run.primary
    host = started["event"]["machine"]["host"]
    checked = NodeChecked(replica="r0", host=host, clock_ahead_seconds=seconds)
    at = next(n for n, line in enumerate(primary) if line["utc"] > started["utc"] + 30.0)
    primary.insert(at, {**primary[at], "event": checked.model_dump(mode="json")})
    assert failed(run) == set()


@pytest.fixture
def real(tmp_path: Path) -> ForgedRun:
    """Return a real run of this version."""
    return ForgedRun(complete(tmp_path / "complete"))


def cut(run: ForgedRun, kind: str, number: int = 0) -> None:
    """Let r0 have been killed after a record, and the end of the run have been recorded later."""
    lines = run.trainer()
    del lines[at(lines, kind, number) + 1 :]
    search = run.search()
    search[:] = [line for line in search if line["utc"] < lines[-1]["utc"]]
    make_digests_again(run)


@pytest.mark.parametrize(
    ("kind", "number"),
    [("replica_started", 0), ("clocks_read", 0), ("system_described", 0), ("evaluated", 3),
     ("best_epoch_saved", 1)],
)  # fmt: skip
def test_a_replica_that_was_killed_has_recorded_what_it_could(
    real: ForgedRun, kind: str, number: int
) -> None:
    cut(real, kind, number)
    assert failed(real) == set()


def test_a_best_epoch_that_could_not_be_written_is_noted(real: ForgedRun) -> None:
    lines = real.trainer()
    lines[:] = [line for line in lines if line["event"]["type"] != "best_epoch_saved"]
    for line in of(lines, "trial_ended"):
        line["event"]["reason"] = "its best epoch is not stored: no space left on device"
    make_digests_again(real)
    result = found(real)["best epochs"]
    assert result.passed
    assert result.notes[0].startswith("not re-executable: r0-t1, the best")


def test_a_replica_whose_folder_was_lost_lowers_the_score_and_contradicts_nothing(
    tmp_path: Path,
) -> None:
    """Others had grown from its trials, whose descent the search digest has."""
    view = simulated_run(tmp_path / "run", nodes=4, hours=0.1)
    trials = view.history.trials.values()
    parents = {view.history.trials[t.started.parent].replica: t.replica
               for t in trials if t.started.parent is not None
               and view.history.trials[t.started.parent].replica != t.replica}  # fmt: skip
    lost, whole = next(iter(parents)), view.final().operations
    run = ForgedRun(view.paths)
    file = f"replicas/{lost}/0.0/journal.jsonl"
    shutil.rmtree(run.paths.replica(lost))
    assert {"journals", "graphs", "replicas"} <= failed(run)
    problem = FileProblem(file=file, problem="it is gone", remedy="none")
    primary = run.primary
    primary.insert(-1, {**primary[-1], "event": problem.model_dump(mode="json")})
    assert failed(run) == set()
    view = RunView.read(run.paths)
    assert 0 < view.final().operations < whole
    assert "records" in {violation.rule for violation in view.status().violations}


@pytest.mark.parametrize("name", ["r0/0.0/search-7", "r0/x/journal", "r1/0.0/journal"])
def test_a_lost_file_excuses_no_other_journal(run: ForgedRun, name: str) -> None:
    """Neither a malformed line nor a record of an unknown trial."""
    problem = FileProblem(file=f"replicas/{name}.jsonl", problem="it is gone", remedy="none")
    primary = run.primary
    primary.insert(-1, {**primary[-1], "event": problem.model_dump(mode="json")})
    lines = run.trainer()
    del lines[at(lines, "trial_started")]
    result = found(run)["journals"]
    assert any("which no record of this replica started" in each for each in result.failures)


@pytest.mark.parametrize("lost", [False, True])
def test_a_later_attempt_may_refer_to_trials_of_a_lost_one(tmp_path: Path, *, lost: bool) -> None:
    run = HeadedRun(tmp_path / "run")
    run.turn()
    shutil.rmtree(run.paths.replica("r0"))
    if lost:
        run.primary.append_all(lost_before_resume(RunHistory.read(run.paths)))
    later = run.journal(run.paths.replica_journal("r0", Incarnation(1, 0)))
    later.append_all([replica_started("r0"), progress("t1", train=10)])
    result = check_rule("journals", run.paths)
    texts = result.notes if lost else result.failures
    assert any("r0/1.0" in each and "which no record" in each for each in texts)
    assert not any("r0/1.0" in each for each in (result.failures if lost else result.notes))


def test_a_run_that_lost_all_replicas_before_they_executed_samples_is_noted(run: ForgedRun) -> None:
    for replica in REPLICAS:
        lines = run.trainer(replica)
        del lines[at(lines, "dataset_loaded") :]
    assert failed(run) == set()
    assert found(run)["dataset"].notes == (
        "no replica recorded its dataset, and none executed samples",
    )


def test_a_run_without_the_records_of_its_dataset_is_found(run: ForgedRun) -> None:
    for replica in REPLICAS:
        lines = run.trainer(replica)
        del lines[at(lines, "dataset_loaded")]
    assert "dataset" in failed(run)


def test_each_rule_has_a_row_whose_test_exists() -> None:
    rows = ROW.findall((ROOT / "docs" / "trust.md").read_text("utf-8"))
    assert [rule for rule, *_ in rows] == [rule.name for rule in CONSISTENCY]
    for _, _, file, name in rows:
        assert f"\ndef {name}(" in (ROOT / file).read_text("utf-8")
