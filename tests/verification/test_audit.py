"""Verification of a run that keeps all rules, and of small changes to it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from benchmarks import synthetic_run
from tests.support.clock import Clock
from tests.support.hostile import appended, edited_lines, in_records
from tests.support.manifests import change_manifest, restate
from tests.support.rules import check_rule, failures_by_rule
from tests.support.run_writer import replica_started

from aiperf_hpc.morphism.weights.predictions import Predictions, file_digest, save_predictions
from aiperf_hpc.results.report.provenance import ReportManifest
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.rule import RuleResult
from aiperf_hpc.run import records
from aiperf_hpc.run.history import RunHistory, Trial
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import Incarnation, RunPaths
from aiperf_hpc.run.records import RECORD
from aiperf_hpc.trial import JobPhase, TimePhase, TrialState
from aiperf_hpc.verification.audit import verify

REPLICAS = 3


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return synthetic_run.write_run(tmp_path / "run", REPLICAS, distinct=2).paths


def history_of(paths: RunPaths) -> RunHistory:
    history = RunHistory(paths)
    history.refresh()
    return history


def reported(paths: RunPaths) -> RunPaths:
    """Write the report of a run."""
    write_report(RunView(paths))
    return paths


def replace_in(path: Path, old: str, new: str, count: int = -1) -> None:
    """Replace text of a file that contains it."""
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, count), "utf-8")


def append(path: Path, utc: float, event: records.AnyEvent) -> None:
    """Append to r0's journal, whose monotonic clock was at 4321 s when the run started."""
    with JournalWriter(path, clock=Clock(utc)) as journal:
        journal.append(event)


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
    history = history_of(written.paths)
    assert [history.stock(f"r{n}") for n in range(REPLICAS)] == [0] * REPLICAS


def test_a_run_that_has_not_ended_is_verified_up_to_its_last_record(tmp_path: Path) -> None:
    paths = synthetic_run.write_run(tmp_path, REPLICAS, ended=False).paths
    assert failures_by_rule(paths) == {}


def test_a_clock_that_jumps_is_found_with_its_place(run: RunPaths) -> None:
    path = run.replica_journal("r1")
    mono = json.loads(path.read_bytes().splitlines()[7])["mono"]
    replace_in(path, f'"mono":{mono}', f'"mono":{mono - 20.0}', 1)
    assert check_rule("clocks", run).failures == (
        "replicas/r1/0.0/journal.jsonl, record 7: 20.000 s off since record 0",
        "replicas/r1/0.0/journal.jsonl, record 8: -20.000 s off since record 7",
    )


def test_what_a_replaced_replica_wrote_is_neither_credited_nor_recounted(tmp_path: Path) -> None:
    paths = synthetic_run.write_run(tmp_path, REPLICAS, ended=False).paths
    before = RunView(paths)
    before.refresh()
    utc = before.history.last_utc + 1.0
    started = started_again(paths)
    trial = before.history.replicas["r0"].trials[-1]
    epoch = len(before.history.trials[trial].evaluations)
    late = records.Progress(trial=trial, epoch=epoch, train_samples=100, validation_samples=0)
    append(paths.replica_journal("r0", Incarnation(0, 1)), utc, started)
    append(paths.replica_journal("r0"), utc + 1.0, late)
    after = RunView(paths)
    after.refresh()
    assert after.history.fenced == 1
    assert after.final().operations == before.final().operations
    assert failures_by_rule(paths) == {}


@pytest.mark.parametrize(("seconds", "passes"), [(1.0, True), (-1.0, False)])
def test_a_journal_begun_after_the_end_is_no_change_and_one_before_it_is(
    run: RunPaths, seconds: float, passes: bool
) -> None:
    """A scheduler may start a replica after the run has ended and its report was made."""
    assert failures_by_rule(reported(run)) == {}
    late, end_utc = run.replica_journal("r0", Incarnation(0, 1)), history_of(run).end_utc
    assert end_utc is not None
    append(late, end_utc + seconds, started_again(run))
    name = late.relative_to(run.root)
    said = f"manifest.json does not name {name}: it was not there when the run ended"
    files = check_rule("files", run)
    assert (files.failures, files.notes) == (((), (said,)) if passes else ((said,), ()))
    assert (failures_by_rule(run) == {}) == passes


def _kept(run: RunPaths, **changed: object) -> tuple[Path, Trial]:
    """Keep predictions of r0's first trial, and record what is true but for ``changed``."""
    history = history_of(run)
    trial = history.trials[history.replicas["r0"].trials[0]]
    last = trial.evaluations[-1]
    path = run.predictions("r0", trial.id)
    classes = np.arange(last.samples) % 3
    digest = save_predictions(path, Predictions(trial.id, last.epoch, classes))
    said = {"epoch": last.epoch, "samples": last.samples, "sha256": digest, **changed}
    kept = records.PredictionsKept.model_validate({"trial": trial.id, **said})
    _append_before_the_end(run, "r0", kept)
    return path, trial


def _append_before_the_end(run: RunPaths, replica: str, event: records.AnyEvent) -> None:
    """Append to the journal of a replica, or of the primary, before its last record."""
    journal = run.primary_journal if replica == "primary" else run.replica_journal(replica)
    *others, end = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(others))
    last = RECORD.validate_json(end)
    append(journal, last.utc, event)
    append(journal, last.utc, last.event)


def test_kept_predictions_are_checked(run: RunPaths) -> None:
    path, _ = _kept(run)
    assert failures_by_rule(reported(run)) == {}
    path.write_bytes(path.read_bytes()[:-1])
    (said,) = check_rule("predictions", run).failures
    assert "is not the file that was recorded" in said
    path.unlink()
    (said,) = check_rule("predictions", run).failures
    assert "its predictions cannot be read: No such file" in said


def _best_epoch(run: RunPaths, epoch: int | None = None) -> tuple[Path, Path]:
    """Keep a best epoch of the best trial, in files of no sense; return them."""
    history = history_of(run)
    assert history.best is not None
    trial = history.trials[history.best.trial]
    files = run.epoch_began(trial.replica, trial.id), run.epoch_evaluated(trial.replica, trial.id)
    files[0].parent.mkdir()
    for path in files:
        path.write_bytes(path.name.encode())
    began, evaluated = (
        records.KeptFile(bytes=path.stat().st_size, sha256=file_digest(path)) for path in files
    )
    kept = records.BestEpochKept(
        trial=trial.id, epoch=epoch or history.best.epoch, began=began, evaluated=evaluated
    )
    _append_before_the_end(run, trial.replica, kept)
    write_report(RunView(run))
    return files


def test_the_kept_best_epoch_of_the_best_trial_is_checked(run: RunPaths) -> None:
    _, evaluated = _best_epoch(run)
    assert failures_by_rule(run) == {}
    content = evaluated.read_bytes()
    evaluated.write_bytes(content[::-1])
    (said,) = check_rule("best epochs", run).failures
    assert "evaluated.safetensors is not the file that was recorded" in said
    evaluated.write_bytes(content[:-1])
    (said,) = check_rule("best epochs", run).failures
    assert f"has {len(content) - 1} bytes, {len(content)} were recorded" in said
    evaluated.unlink()
    (said,) = check_rule("best epochs", run).failures
    assert "cannot be read: No such file" in said
    os.mkfifo(evaluated)
    (said,) = check_rule("best epochs", run).failures
    assert "is no file" in said


def test_a_kept_epoch_that_is_not_the_best_is_found(run: RunPaths) -> None:
    _best_epoch(run, 99)
    (said,) = check_rule("best epochs", run).failures
    assert "the best epoch that was kept is 99" in said


@pytest.mark.parametrize("changed", [{"epoch": 99}, {"samples": 7}])
def test_predictions_of_no_evaluation_are_found(run: RunPaths, changed: dict[str, int]) -> None:
    _kept(run, **changed)
    first, second = check_rule("predictions", run).failures
    assert "no such evaluation" in first
    assert "holds predictions of" in second


def test_a_class_that_there_is_not_is_found(run: RunPaths) -> None:
    path, trial = _kept(run)
    last = trial.evaluations[-1]
    classes = np.full(last.samples, 4_000)
    digest = save_predictions(path, Predictions(trial.id, last.epoch, classes))
    in_records("predictions_kept", lambda record: record["event"].update(sha256=digest))(run)
    (said,) = check_rule("predictions", run).failures
    assert "predicts class 4000 of" in said


def test_samples_that_were_credited_twice_are_found(run: RunPaths) -> None:
    in_records("progress", lambda record: record["event"].update(train_samples=9**9))(run)
    found = check_rule("samples", run).failures
    assert [each.partition("(")[0] for each in found] == [
        f"r{number}-t1, epoch 1: " for number in range(REPLICAS)
    ]


@pytest.mark.parametrize(
    ("rule", "changed", "said"),
    [
        ("batches", {"batch_size": 65}, "batch size 65 is not one of [32, 64, 128]"),
        ("rounds", {"kernel_size": 9}, "kernel size 9 is not in the search space"),
        ("rounds", {"momentum": 0.8}, "momentum 0.8, configured 0.9"),
    ],
)
def test_hyperparameters_outside_the_search_space_are_found(
    run: RunPaths, rule: str, changed: dict[str, float], said: str
) -> None:
    def change(record: dict[str, Any]) -> None:
        if record["event"]["phase"] == "hpo":
            record["event"]["hyperparameters"].update(changed)

    in_records("trial_started", change, most=99)(run)
    assert any(said in failure for failure in check_rule(rule, run).failures)


def test_a_searched_learning_rate_has_to_be_from_its_range(run: RunPaths) -> None:
    manifest = yaml.safe_load(run.manifest.read_text("utf-8"))
    space = manifest["config"]["hpo"]["space"]
    for high, passes in ((0.2, True), (0.09, False)):
        space["learning_rate"] = {"low": 0.05, "high": high}
        run.manifest.write_text(yaml.safe_dump(manifest), "utf-8")
        found = check_rule("rounds", run).failures
        assert (found == ()) == passes
        assert all("learning_rate 0.1 is not from 0.05 to 0.09" in failure for failure in found)


def test_a_final_report_holds_also_where_the_end_of_the_run_was_removed(run: RunPaths) -> None:
    edited_lines(reported(run).primary_journal, lambda lines: lines[:-1])
    perfect = re.compile(rb'"correct":\d+')
    edited_lines(
        run.replica_journal("r0"),
        lambda lines: [perfect.sub(b'"correct":360', line) for line in lines],
    )
    found = failures_by_rule(run)
    assert "report.json states another 'final' than the records give" in found["report"]
    assert {name.split()[0] for name in found["files"]} == {
        "primary/journal.jsonl",
        "replicas/r0/0.0/journal.jsonl",
    }
    run.report_manifest.unlink()
    assert check_rule("files", run).failures == (
        "manifest.json cannot be read: No such file or directory",
    )


@pytest.mark.parametrize("kind", ["run_started", "run_ended"])
def test_nothing_starts_or_ends_a_run_that_has_ended(run: RunPaths, kind: str) -> None:
    lines = [json.loads(line) for line in reported(run).primary_journal.read_bytes().splitlines()]
    again = next(line for line in lines if line["event"]["type"] == kind)
    end = lines[-1]
    more = {"seq": end["seq"] + 1, "utc": end["utc"] + 0.5, "mono": end["mono"] + 0.5}
    appended("primary/journal.jsonl", json.dumps(again | more).encode() + b"\n")(run)
    found = failures_by_rule(run)
    said = f"primary/journal.jsonl, record {more['seq']}: {kind} after the run had ended"
    assert found["order"] == (said,)
    assert "report" in found


def test_a_configuration_that_was_changed_is_found_also_by_a_new_report(run: RunPaths) -> None:
    text = run.manifest.read_text("utf-8")
    changed = re.sub(r"startup_trials: \d+", "startup_trials: 1", text)
    assert changed != text
    run.manifest.write_text(changed, "utf-8")
    found = check_rule("config", reported(run)).failures
    was, now = (hashlib.sha256(t.encode()).hexdigest()[:12] for t in (text, changed))
    assert found == tuple(
        f"run.yaml has SHA-256 {now}, {who} had {was}"
        for who in (
            "the primary of 2025-06-15T15:06:40.000Z",
            *(f"r{number}, life 0.0," for number in range(REPLICAS)),
        )
    )


def state_nothing(run: RunPaths, journals: Iterable[Path]) -> RuleResult:
    """Let no SHA-256 of ``run.yaml`` stand in journals; return what comes of the rule."""
    for journal in journals:
        text = journal.read_text("utf-8").replace(run.manifest_digest(), "")
        journal.write_text(text, "utf-8")
    return check_rule("config", run)


def test_that_nobody_stated_the_configuration_is_said(run: RunPaths) -> None:
    """As in runs of the first versions."""
    found = state_nothing(run, run.journals())
    said = "nobody stated the SHA-256 of run.yaml: it may be another than the run's"
    assert (found.failures, found.notes, found.checked) == ((), (said,), 0)


def test_replicas_of_earlier_versions_did_not_state_the_configuration(run: RunPaths) -> None:
    journals = list(run.journals())
    found = state_nothing(run, journals[1:])
    assert (found.failures, found.notes, found.checked) == ((), (), 1)


@pytest.mark.parametrize(
    ("which", "who"), [(0, "the primary of 2025-06-15T15:06:40.000Z"), (1, "r0, life 0.0,")]
)
def test_one_who_alone_did_not_state_the_configuration_is_found(
    run: RunPaths, which: int, who: str
) -> None:
    found = state_nothing(run, [list(run.journals())[which]])
    assert found.failures == (f"{who} did not state the SHA-256 of run.yaml, as others did",)


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
    said = "the primary recorded that r1 ended in order; r1 recorded no start"
    assert check_rule("replicas", run).failures == (said,)


def test_a_run_without_the_folder_of_a_replica_is_reported_and_names_its_journal(
    run: RunPaths,
) -> None:
    shutil.rmtree(run.replica("r1"))
    (lost,) = check_rule("journals", reported(run)).failures
    assert lost == (
        f"{run.replica_journal('r1')}, line 1: the journal is gone, of a replica that ended in "
        "order; put it back"
    )
    stated = json.loads(run.report_json.read_text("utf-8"))
    assert stated["score"]["operations"] > 0
    assert "replicas/r1/0.0/journal.jsonl" in json.dumps(stated["invalid"])


def test_a_journal_that_the_primary_missed_counts_as_lost_until_it_is_back(
    run: RunPaths,
) -> None:
    """A later life of the replica has a folder again; that the first had one the primary says."""
    journal = run.search_journal("r1", 0)
    name = str(journal.relative_to(run.root))
    event = records.FileProblem(file=name, problem="it is gone", remedy="none")
    _append_before_the_end(run, "primary", event)
    assert check_rule("journals", run).passed
    journal.unlink()
    failures = check_rule("journals", run).failures
    assert f"{journal}, line 1: the journal is gone; put it back" in failures


NO_RECORDS: dict[str, tuple[list[records.AnyEvent], bool]] = {
    "runs": ([records.JobState(replica="r2", phase=JobPhase.RUNNING)], True),
    "died": (
        [
            records.JobState(replica="r2", phase=JobPhase.RUNNING),
            records.JobState(replica="r2", phase=JobPhase.LOST, detail="NODE_FAIL"),
        ],
        True,
    ),
    "refused": ([records.ReplicaExited(replica="r2", status=3)], True),
    "never started": (
        [
            records.JobState(replica="r2", phase=JobPhase.REQUEUED),
            records.JobState(
                replica="r2", phase=JobPhase.DONE, detail="cancelled before it started"
            ),
        ],
        True,
    ),
    "done": ([records.JobState(replica="r2", phase=JobPhase.DONE)], False),
    "ended": ([records.ReplicaExited(replica="r2", status=0)], False),
    "seen": (
        [records.NodeChecked(replica="r2", host="n9", clock_ahead_seconds=None)],
        False,
    ),
}


@pytest.mark.parametrize("case", NO_RECORDS)
def test_a_replica_without_records_is_missed_where_it_must_have_written(
    tmp_path: Path, case: str
) -> None:
    events, passes = NO_RECORDS[case]
    paths = synthetic_run.write_run(tmp_path, REPLICAS, distinct=2, ended=False).paths
    shutil.rmtree(paths.replica("r2"))
    start = history_of(paths).start_utc
    assert start is not None
    with JournalWriter(paths.primary_journal, clock=synthetic_run.Set(start)) as journal:
        journal.append_all(events)
    found = failures_by_rule(paths)
    assert ("replicas" not in found) == passes
    assert set(found) <= {"replicas"}


def end_amid_the_last_trial(root: Path) -> tuple[RunPaths, Trial, float]:
    """End a run while r0 trains; return its last trial, and the end in UTC seconds."""
    paths = synthetic_run.write_run(root, REPLICAS, distinct=2, ended=False).paths
    journal = paths.replica_journal("r0")
    lines = journal.read_bytes().splitlines(keepends=True)
    last = max(place for place, line in enumerate(lines) if b'"evaluated"' in line)
    journal.write_bytes(b"".join(lines[: last - 3]))  # Without the last epoch.
    history = history_of(paths)
    start, end = history.start_utc, history.last_utc + 1.0
    assert start is not None
    clock = synthetic_run.Set(start)
    with JournalWriter(paths.primary_journal, clock=clock) as primary:
        while clock.now + 30.0 < end:
            clock.sleep(30.0)
            primary.append(records.PrimaryHeartbeat())
        clock.now = end
        primary.append(records.RunEnded(reason="stopped"))
    return paths, history.trials[history.replicas["r0"].trials[-1]], end


def write_late(paths: RunPaths, trial: Trial, utc: float) -> None:
    """Let r0 go on with its trial after the end of the run."""
    epoch = synthetic_run.EPOCHS[-1]
    late = [
        *synthetic_run.epoch_events(trial.id, epoch, 359),
        records.TimeSpent(trial=trial.id, seconds={TimePhase.TRAIN: utc - trial.started_utc}),
        records.TrialEnded(
            trial=trial.id,
            state=TrialState.COMPLETED,
            reason="",
            predicted_accuracy=None,
            checkpoint=False,
        ),
    ]
    clock = synthetic_run.Set(synthetic_run.START - 4321.0)
    clock.now = utc
    with JournalWriter(paths.replica_journal("r0"), clock=clock) as journal:
        journal.append_all(late)


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
    after = RunView(paths)
    after.refresh()
    assert after.final() == before.final()
    told = json.loads(reported(paths).report_json.read_text("utf-8"))["problems"]["clock"]
    assert "3 records of executed samples are later than the end: no credit" in told
    assert failures_by_rule(paths) == {}


def test_samples_from_before_the_start_are_found(run: RunPaths) -> None:
    in_records("run_started", lambda record: record.update(utc=record["utc"] + 300.0))(run)
    failures = check_rule("order", run).failures
    assert any("are before the start: ['r0-t1', " in line for line in failures)


@pytest.mark.parametrize("file", ["run.yaml", "report/report.json", "report/report.html"])
def test_the_manifest_of_a_report_must_name_the_report_and_what_it_was_asked(
    run: RunPaths, file: str
) -> None:
    change_manifest(reported(run), lambda files: tuple(each for each in files if each.path != file))
    assert failures_by_rule(run) == {"files": (f"manifest.json does not name {file}",)}


def restate_report(paths: RunPaths, change: Callable[[dict[str, Any]], object]) -> None:
    """Change ``report.json``, and its SHA-256 in the manifest with it."""
    report = json.loads(paths.report_json.read_text("utf-8"))
    change(report)
    restate(paths, paths.report_json, json.dumps(report).encode())


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "operations": (lambda r: r["trials"][0].update(operations=1), "r0-t1: * 'operations'"),
    "samples": (lambda r: r["trials"][0].update(train_samples=1), "r0-t1: * 'train_samples'"),
    "accuracy": (lambda r: r["trials"][0].update(best_accuracy=1.0), "r0-t1: * 'best_accuracy'"),
    "notes": (lambda r: r["trials"][0].update(notes=["x"]), "r0-t1: * 'notes'"),
    "one less": (lambda r: r["trials"].pop(0), "* no trial r0-t1"),
    "one more": (
        lambda r: r["trials"].append(r["trials"][0] | {"id": "r0-t10"}), "* an unknown trial r0-t10"
    ),
    "one twice": (lambda r: r["trials"].append(r["trials"][0]), "* trials of the same name"),
    "none": (lambda r: r.pop("trials"), "* no trial r0-t1"),
    "no table": (lambda r: r.update(trials=7), "* no trial r0-t1"),
    "time": (lambda r: r["time"].update(train_evaluate_share=0.99), "* another 'time' *"),
    "its time": (
        lambda r: r["replicas"][1]["time"]["phases"]["train"].update(seconds=1.0), "r1: * 'time'"
    ),
    "launcher": (lambda r: r.update(launcher="slurm"), "* another 'launcher' *"),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_a_report_that_was_changed_with_its_manifest_is_found(run: RunPaths, case: str) -> None:
    change, said = CHANGES[case]
    restate_report(reported(run), change)
    found = failures_by_rule(run)
    assert list(found) == ["report"]
    assert fnmatch(found["report"][0], f"{said}*")


def test_a_report_is_compared_to_the_last_digits_of_its_times(run: RunPaths) -> None:
    """They are sums over replicas, which a live reader may have met in another order."""
    restate_report(
        reported(run),
        lambda r: r["time"].update(elapsed_seconds=r["time"]["elapsed_seconds"] + 1e-10),
    )
    assert not check_rule("report", run).passed
    other_maker(run)
    assert failures_by_rule(run) == {}


def other_maker(paths: RunPaths) -> None:
    """Let the manifest say that another version made the report."""
    manifest = ReportManifest.model_validate_json(paths.report_manifest.read_bytes())
    made_by = {**manifest.made_by, "aiperf-hpc": "0.0.1"}
    content = manifest.model_copy(update={"made_by": made_by}).content()
    paths.report_manifest.write_bytes(content)


@pytest.mark.parametrize("name", ["report.html", "report.schema.json", "summary.json"])
def test_what_no_value_is_read_of_is_compared_by_its_bytes(run: RunPaths, name: str) -> None:
    """It says VALID, say, and its hash was made again."""
    path = reported(run).report / name
    restate(run, path, path.read_bytes()[:-9] + b"VALID" + path.read_bytes()[-9:])
    (said,) = check_rule("report", run).failures
    assert said.startswith(f"{name} is not what the records give, from its byte ")
    other_maker(run)
    found = check_rule("report", run)
    assert found.failures == ()
    (note,) = found.notes
    assert note.startswith("it was made by aiperf-hpc 0.0.1, here it is ")
    assert note.endswith(": its values were compared, not its bytes")


def test_a_section_on_other_runs_is_compared_as_stated(tmp_path: Path) -> None:
    runs = [synthetic_run.write_run(tmp_path / str(n), n, distinct=1).paths for n in (1, 2)]
    write_report(RunView(runs[1]), [reported(runs[0])])
    found = check_rule("report", runs[1])
    said = "its section on scaling is of other runs' reports, which were not looked at"
    assert (found.failures, found.notes) == ((), (said,))


def test_a_trial_that_began_after_the_end_may_be_missing_in_the_report(tmp_path: Path) -> None:
    paths, trial, end = end_amid_the_last_trial(tmp_path)
    write_late(reported(paths), trial, end + 1.0)
    clock = synthetic_run.Set(synthetic_run.START - 4321.0)
    clock.now = end + 2.0
    with JournalWriter(paths.replica_journal("r0"), clock=clock) as journal:
        journal.append(trial.started.model_copy(update={"trial": "r0-late"}))
    assert failures_by_rule(paths) == {}
