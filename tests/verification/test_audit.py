"""Verification of a run that satisfies all rules, and of small changes to it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from benchmarks import synthetic_run
from tests.support.hostile import in_records
from tests.support.rules import (
    append,
    append_before_the_end,
    check_rule,
    end_amid_the_last_trial,
    failures_by_rule,
    reported,
    verify,
    write_late,
)
from tests.support.run_writer import replica_started

from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.rule import RuleResult
from aiperf_hpc.run import records
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.paths import Incarnation, RunPaths
from aiperf_hpc.trial import JobPhase

REPLICAS = 3


def state(phase: JobPhase, detail: str = "") -> records.JobState:
    return records.JobState(replica="r2", phase=phase, detail=detail)


NO_RECORDS: dict[str, tuple[list[records.AnyEvent], bool]] = {
    "runs": ([state(JobPhase.RUNNING)], True),
    "died": ([state(JobPhase.RUNNING), state(JobPhase.LOST, "NODE_FAIL")], True),
    "refused": ([records.ReplicaExited(replica="r2", status=3)], True),
    "never started":
        ([state(JobPhase.REQUEUED), state(JobPhase.DONE, "cancelled before it started")], True),
    "done": ([state(JobPhase.DONE)], False),
    "ended": ([records.ReplicaExited(replica="r2", status=0)], False),
    "seen": ([records.NodeChecked(replica="r2", host="n9", clock_ahead_seconds=None)], False),
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return synthetic_run.write_run(tmp_path / "run", REPLICAS, distinct=2).paths


def started_again(paths: RunPaths) -> records.ReplicaStarted:
    """Return what a later attempt of r0 records first."""
    return replica_started().model_copy(update={"manifest_sha256": paths.manifest_digest()})


def test_the_benchmarks_run_is_verified_and_has_as_many_records_as_it_says(tmp_path: Path) -> None:
    written = synthetic_run.write_run(tmp_path, REPLICAS, distinct=2)
    findings = {f.rule: f for f in verify(RunView(reported(written.paths)))}
    assert {rule: f.failures for rule, f in findings.items() if not f.passed} == {}
    assert findings["journals"].checked == written.records
    epochs = sum(synthetic_run.EPOCHS)
    assert findings["samples"].checked == REPLICAS * 3 * epochs
    assert findings["evaluations"].checked == REPLICAS * epochs
    history = RunHistory.read(written.paths)
    assert [history.stock(f"r{n}") for n in range(REPLICAS)] == [0] * REPLICAS


def test_a_run_that_has_not_ended_is_verified_up_to_its_last_record(tmp_path: Path) -> None:
    paths = synthetic_run.write_run(tmp_path, REPLICAS, ended=False).paths
    assert failures_by_rule(paths) == {}


def test_what_a_replaced_replica_wrote_is_neither_credited_nor_recounted(tmp_path: Path) -> None:
    paths = synthetic_run.write_run(tmp_path, REPLICAS, ended=False).paths
    before = RunView.read(paths)
    utc = before.history.last_utc + 1.0
    started = started_again(paths)
    trial = before.history.replicas["r0"].trials[-1]
    epoch = len(before.history.trials[trial].evaluations)
    late = records.Progress(trial=trial, epoch=epoch, train_samples=100, validation_samples=0)
    append(paths.replica_journal("r0", Incarnation(0, 1)), utc, started)
    append(paths.replica_journal("r0"), utc + 1.0, late)
    after = RunView.read(paths)
    assert after.history.fenced == 1
    assert after.final().operations == before.final().operations
    assert failures_by_rule(paths) == {}


@pytest.mark.parametrize(("seconds", "passes"), [(1.0, True), (-1.0, False)])
def test_a_journal_begun_after_the_end_is_no_change_and_one_before_it_is(
    run: RunPaths, seconds: float, passes: bool
) -> None:
    """A scheduler may start a replica after the run has ended and its report was made."""
    assert failures_by_rule(reported(run)) == {}
    late, end_utc = run.replica_journal("r0", Incarnation(0, 1)), RunHistory.read(run).end_utc
    assert end_utc is not None
    append(late, end_utc + seconds, started_again(run))
    name = late.relative_to(run.root)
    said = f"manifest.json does not name {name}: it did not exist when the run ended"
    files = check_rule("files", run)
    assert (files.failures, files.notes) == (((), (said,)) if passes else ((said,), ()))
    assert (failures_by_rule(run) == {}) == passes


def test_a_kernel_size_outside_the_search_space_is_found(run: RunPaths) -> None:
    def change(record: dict[str, Any]) -> None:
        record["event"]["hyperparameters"]["kernel_size"] = 9

    in_records("trial_started", change)(run)
    failures = check_rule("rounds", run).failures
    assert any("kernel size 9 is not in the search space" in failure for failure in failures)


def test_a_searched_learning_rate_has_to_be_from_its_range(run: RunPaths) -> None:
    manifest = yaml.safe_load(run.manifest.read_text("utf-8"))
    space = manifest["config"]["hpo"]["space"]
    for high, passes in ((0.2, True), (0.09, False)):
        space["learning_rate"] = {"low": 0.05, "high": high}
        run.manifest.write_text(yaml.safe_dump(manifest), "utf-8")
        found = check_rule("rounds", run).failures
        assert (found == ()) == passes
        assert all("learning_rate 0.1 is not from 0.05 to 0.09" in failure for failure in found)


def state_nothing(run: RunPaths, journals: Iterable[Path]) -> RuleResult:
    """Let no SHA-256 of ``run.yaml`` stand in journals; return what comes of the rule."""
    for journal in journals:
        text = journal.read_text("utf-8").replace(run.manifest_digest(), "")
        journal.write_text(text, "utf-8")
    return check_rule("config", run)


@pytest.mark.parametrize(
    ("first", "notes", "checked"),
    [
        (0, ("no process recorded the SHA-256 of run.yaml, so it may have changed",), 0),
        (1, (), 1),
    ],
)
def test_replicas_and_primaries_of_earlier_versions_did_not_state_the_configuration(
    run: RunPaths, first: int, notes: tuple[str, ...], checked: int
) -> None:
    found = state_nothing(run, list(run.journals())[first:])
    of_format, *others = found.notes
    assert of_format.startswith("the format is of an earlier version")
    assert (found.failures, tuple(others), found.checked) == ((), notes, checked)


@pytest.mark.parametrize(
    ("which", "who"), [(0, "the primary of 2025-06-15T15:06:40.000Z"), (1, "r0, attempt 0.0,")]
)
def test_one_who_alone_did_not_state_the_configuration_is_found(
    run: RunPaths, which: int, who: str
) -> None:
    found = state_nothing(run, [list(run.journals())[which]])
    assert found.failures == (f"{who} did not record the SHA-256 of run.yaml",)


def test_a_life_whose_folder_has_another_name_is_missed(run: RunPaths) -> None:
    life = run.replica_journal("r1").parent
    life.rename(life.with_name("0.0-old"))
    journals = check_rule("journals", reported(run)).failures
    assert [line.split(", line 1: ")[0] for line in journals] == [
        *(
            str(run.replica("r1") / "0.0-old" / name)
            for name in ("journal.jsonl", "search-0.jsonl")
        ),
        str(run.replica_journal("r1")),
    ]
    said = "the primary recorded that r1 shut down cleanly; r1 recorded no start"
    assert check_rule("replicas", run).failures == (said,)


def test_a_run_without_the_folder_of_a_replica_is_reported_and_names_its_journal(
    run: RunPaths,
) -> None:
    shutil.rmtree(run.replica("r1"))
    (lost,) = check_rule("journals", reported(run)).failures
    assert lost == (
        f"{run.replica_journal('r1')}, line 1: the journal is missing, of a replica that shut down "
        "cleanly; restore it"
    )
    stated = json.loads(run.report_json.read_text("utf-8"))
    assert stated["score"]["operations"] > 0
    assert "replicas/r1/0.0/journal.jsonl" in json.dumps(stated["violations"])


def test_a_journal_that_the_primary_missed_is_noted_until_it_is_back(
    run: RunPaths,
) -> None:
    """A later life of the replica has a folder again; that the first had one the primary says."""
    journal = run.search_journal("r1", 0)
    name = str(journal.relative_to(run.root))
    event = records.FileProblem(file=name, problem="it is gone", remedy="none")
    append_before_the_end(run, "primary", event)
    assert check_rule("journals", run).passed
    journal.unlink()
    result = check_rule("journals", run)
    lost = f"{journal}, line 1: the journal is missing; restore it; it was lost during the run"
    assert (result.passed, lost in result.notes) == (True, True)


def test_a_journal_recorded_as_missing_is_described_alike_if_the_replica_has_none_left(
    run: RunPaths,
) -> None:
    journal = run.replica_journal("r1")
    name = str(journal.relative_to(run.root))
    append_before_the_end(
        run, "primary", records.FileProblem(file=name, problem="gone", remedy="none")
    )
    shutil.rmtree(run.replica("r1"))
    lost = f"{journal}, line 1: the journal is missing; restore it; it was lost during the run"
    assert lost in check_rule("journals", run).notes


@pytest.mark.parametrize("case", NO_RECORDS)
def test_a_replica_without_records_is_missed_where_it_must_have_written(
    tmp_path: Path, case: str
) -> None:
    events, passes = NO_RECORDS[case]
    paths = synthetic_run.write_run(tmp_path, REPLICAS, distinct=2, ended=False).paths
    shutil.rmtree(paths.replica("r2"))
    start = RunHistory.read(paths).start_utc
    assert start is not None
    append(paths.primary_journal, start, *events)
    found = failures_by_rule(paths)
    assert ("replicas" not in found) == passes
    assert set(found) <= {"replicas"}


@pytest.mark.parametrize("seconds", [0.7, 600.0])
def test_what_a_replica_records_after_the_end_is_no_credit_and_no_fault(
    tmp_path: Path, seconds: float
) -> None:
    """Its clock is less ahead than is complained about, or nobody could confirm its end."""
    paths, trial, end = end_amid_the_last_trial(tmp_path)
    before = RunView(reported(paths))
    assert failures_by_rule(paths) == {}
    before.refresh()
    write_late(paths, trial, end + seconds)
    assert failures_by_rule(paths) == {}
    after = RunView.read(paths)
    assert after.final() == before.final()
    told = json.loads(reported(paths).report_json.read_text("utf-8"))["problems"]["clock"]
    assert "3 records of executed samples are later than the end: no credit" in told
    assert failures_by_rule(paths) == {}
