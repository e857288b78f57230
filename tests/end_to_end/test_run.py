"""The main job: from `aiperf start` to a score that the run's own records prove."""

from __future__ import annotations

import json
import re
import subprocess

from tests.support.command import aiperf

from aiperf_hpc.morphism.operators.morphisms import MORPHISMS
from aiperf_hpc.rules.registry import CONSISTENCY
from aiperf_hpc.run.history import RunHistory, counted
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.telemetry.values import Part
from aiperf_hpc.trial import RoundPhase

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
    assert re.search(r"^duration {9}\d", aiperf("report", paths.root).stdout, re.MULTILINE)
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
    assert history.best.quality > 0.1  # Better than chance.


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
