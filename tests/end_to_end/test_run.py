"""The main job: from `aiperf start` to a score that the run's own records prove."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import aiperf

from aiperf_hpc.morphism.operators.morphisms import MORPHISMS
from aiperf_hpc.morphism.weights.weight_file import file_digest
from aiperf_hpc.replica.reexecution import execute
from aiperf_hpc.replica.training.checkpoint import load_training, save_training
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.registry import CONSISTENCY
from aiperf_hpc.run.history import RunHistory, Trial, counted
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import BestEpochSaved
from aiperf_hpc.telemetry.values import Part
from aiperf_hpc.trial import RoundPhase
from aiperf_hpc.verification.audit import evidence_of, verify
from aiperf_hpc.verification.execution import outcome
from aiperf_hpc.verification.execution.checks import Verdict
from aiperf_hpc.verification.execution.comparison import ReexecutedTrial

Finished = tuple[RunPaths, subprocess.CompletedProcess[str]]


def test_a_run_ends_with_a_score_and_says_it(finished: Finished) -> None:
    paths, done = finished
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"Score            \S+ \w?OPS  \(\S+ operations/s\)", lines[-1])
    assert re.search(r"^Result {11}INVALID: ", done.stdout, re.MULTILINE)
    assert " rules violated (duration, error, dataset, " in " ".join(done.stdout.split())
    assert f"Report           {paths.report_html}" in lines
    assert "duration         0.0" in aiperf("report", paths.root).stdout
    assert paths.report_html.exists()


def test_its_records_are_whole(finished: Finished) -> None:
    history = RunHistory.read(finished[0])
    assert history.problems == []
    assert history.torn == []
    assert history.end_utc is not None
    assert history.start_utc is not None
    assert {r.ended for r in history.replicas.values()} == {"interrupted by the user"}
    assert history.search_failures == []


def test_replicas_reach_hpo_with_grown_candidates(finished: Finished) -> None:
    history = RunHistory.read(finished[0])
    assert len(history.replicas) == 2
    for replica in history.replicas.values():
        trials = [history.trials[name] for name in replica.trials]
        assert max(t.started.round for t in trials) >= 4
        assert any(t.started.phase is RoundPhase.HPO for t in trials)
        assert [not t.started.morphisms for t in trials] == [True] + [False] * (len(trials) - 1)
    # Which kinds they are depends on how many there were; that all are used: test_search.py.
    kinds = {m["kind"] for p in history.proposals.values() for m in p.proposed.morphisms}
    assert kinds
    assert kinds <= MORPHISMS.keys()
    assert history.best is not None
    assert history.best.quality > 0.25


def test_verify_passes_and_the_report_states_the_recount(finished: Finished) -> None:
    paths, _ = finished
    done = aiperf("verify", paths.root)
    assert done.returncode == 0, done.stdout
    *rules, evidence, records, result = done.stdout.splitlines()
    assert evidence.startswith("evidence: self-reported: ")
    assert records == "records: consistent; unsigned"
    assert result.startswith("result: unofficial: duration: ")
    assert any(each.startswith("skipped signature ") for each in rules)
    assert "(0 checked)" not in done.stdout
    assert aiperf("verify", paths.root, "--official").returncode == 3
    as_json = json.loads(aiperf("verify", paths.root, "--json").stdout)
    assert (as_json["consistent"], as_json["official"]) == (True, False)
    assert {rule["rule"] for rule in as_json["rules"]} == {rule.name for rule in CONSISTENCY}
    unseen = {rule["rule"] for rule in as_json["rules"] if not rule["checked"]}
    # Its clock started at once, as nobody waited for nodes; of a search no baseline is told.
    assert unseen <= {"signature", "witness", "clock", "baseline"}


def test_status_and_report_work_on_a_finished_run(finished: Finished) -> None:
    paths, _ = finished
    assert ": stopped (interrupted by the user)" in aiperf("status", paths.root).stdout
    status = json.loads(aiperf("status", paths.root, "--json").stdout)
    assert status["state"] == "ended"
    assert status["score"]["operations"] > 0
    first, *_, last = aiperf("report", paths.root).stdout.splitlines()
    assert first.split() == ["Report", str(paths.report_html)]
    assert last.startswith("Score  ")
    stopped = aiperf("stop", paths.root)
    assert stopped.returncode == 2
    assert "has ended already" in stopped.stderr


def test_the_node_was_sampled_and_what_it_does_not_tell_has_a_reason(finished: Finished) -> None:
    paths, _ = finished
    history = RunHistory.read(paths)
    ((host, samplers),) = history.telemetry.items()
    own = counted(samplers)
    assert own == sorted(samplers, key=lambda s: s.began_utc), "one sampled the host at a time"
    assert history.end_utc is not None
    assert history.start_utc is not None
    points = [point for sampler in own for point in sampler.points]
    sampled = sum(point.seconds for point in points)
    assert 0.0 < sampled <= history.end_utc - history.start_utc
    assert all((point.get("processes_memory") or 0.0) > 0.0 for point in points)
    for sampler in own:
        assert Part.PROCESSORS in sampler.meters or "RAPL" in sampler.absent
    assert f"  {host}  CPU " in aiperf("status", paths.root).stdout


# Tampering: verification must fail, by the rule that was broken.


def tampered(finished: Finished, folder: Path) -> RunPaths:
    shutil.copytree(finished[0].root, folder / "run")
    return RunPaths(folder / "run")


def failed_rules(paths: RunPaths) -> set[str]:
    return {finding.rule for finding in verify(RunView(paths)) if not finding.passed}


def insert_progress(paths: RunPaths, epoch: int, *, after: str) -> None:
    """Credit 1,000 samples that were never trained, with everything else made to fit."""
    path = paths.replica_journal("r0")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    place = next(i for i, record in enumerate(lines) if record["event"]["type"] == after)
    trial = next(r["event"]["trial"] for r in lines if r["event"]["type"] == "trial_started")
    forged = json.loads(json.dumps(lines[place]))
    forged["event"] = {
        "type": "progress", "trial": trial, "epoch": epoch, "train_samples": 192,
        "validation_samples": 64,
    }  # fmt: skip
    lines.insert(place + 1, forged)
    for number, record in enumerate(lines):
        record["seq"] = number
    path.write_text("".join(json.dumps(record) + "\n" for record in lines))


@pytest.mark.parametrize(
    ("epoch", "after"), [(100, "evaluated"), (1, "trial_ended"), (1, "trial_started")]
)
def test_untrained_credit_fails(finished: Finished, tmp_path: Path, epoch: int, after: str) -> None:
    paths = tampered(finished, tmp_path)
    insert_progress(paths, epoch, after=after)
    refused = aiperf("report", paths.root)
    assert refused.returncode == 2
    assert "the final report is unchanged" in refused.stderr
    shutil.rmtree(paths.report)
    assert aiperf("report", paths.root).returncode == 0
    assert "samples" in failed_rules(paths)


# Executed again: what was made up must not be found again, however well the records fit.


def executed_again(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> ReexecutedTrial:
    """Execute the best trial again, in this process."""
    monkeypatch.setattr(outcome, "execute", lambda request, _: execute(request))
    (found,) = outcome.execute_again(evidence_of(RunView(paths)), 0).trials
    return found


def best_of(paths: RunPaths) -> tuple[Trial, BestEpochSaved]:
    history = RunHistory.read(paths)
    assert history.best is not None
    trial = history.trials[history.best.trial]
    assert trial.best_epoch is not None
    return trial, trial.best_epoch


def rewrite(paths: RunPaths, trial: Trial, kind: str, change: Callable[[Any], object]) -> None:
    """Change a trial's records of a kind."""
    path = paths.replica_journal(trial.replica)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if (line["event"]["type"], line["event"].get("trial")) == (kind, trial.id):
            change(line["event"])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_trials_that_are_executed_again_are_as_recorded(finished: Finished) -> None:
    paths, _ = finished
    done = aiperf("verify", paths.root, "--execute", 1, "--seed", "any", "--json")
    found = json.loads(done.stdout)["execution"]
    assert found["stored"] == found["population"]
    values = {c["name"]: c for trial in found["trials"] for c in trial["checks"]}
    # How long it takes is this machine's affair at this moment.
    others = [check for what, check in values.items() if not what.endswith("seconds")]
    assert {check["verdict"] for check in others} == {"PASSED"}
    assert any(what.endswith("trained again: loss") for what in values)


@pytest.mark.parametrize("what", ["correct", "validation_loss", "train_loss"])
def test_a_fabricated_quality_or_loss(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    paths = tampered(finished, tmp_path)
    trial, kept = best_of(paths)
    assert trial.best is not None
    true = trial.best.sums["correct"] if what == "correct" else getattr(trial.best, what)
    stated = trial.best.samples if what == "correct" else 0.9 * true

    def better(event: dict[str, Any]) -> None:
        if event["epoch"] == kept.epoch:
            (event["sums"] if what == "correct" else event)[what] = stated

    rewrite(paths, trial, "evaluated", better)
    found = executed_again(paths, monkeypatch)
    assert (found.trial, found.verdict) == (trial.id, Verdict.FAILED)
    failed = [c for c in found.checks if c.verdict is Verdict.FAILED]
    compared = [c.recorded for c in failed if c is found.checks[0] or "loss" in c.name]
    assert compared == [stated]
    assert found.checks[0].reexecuted == trial.best.sums["correct"]


def test_exchanged_weights(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = tampered(finished, tmp_path)
    trial, _ = best_of(paths)
    path = paths.epoch_evaluated(trial.replica, trial.id)
    content = bytearray(path.read_bytes())
    saved = load_training(path)
    content[-1] ^= 1
    path.write_bytes(content)
    found = executed_again(paths, monkeypatch)
    assert "is not the file that was recorded" in found.failure
    other = {name: 0.9 * array for name, array in saved.weights.items()}
    save_training(path, replace(saved, weights=other, optimizer_state={}))
    stated = {"bytes": path.stat().st_size, "sha256": file_digest(path)}
    rewrite(paths, trial, "best_epoch_saved", lambda event: event["end_checkpoint"].update(stated))
    assert "best epochs" not in failed_rules(paths)
    assert executed_again(paths, monkeypatch).verdict is Verdict.FAILED
