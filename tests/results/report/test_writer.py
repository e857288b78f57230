"""The report, against the run's own files read by other means."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.clock import Clock
from tests.support.reports import document_of, reported
from tests.support.rules import check_rule, verify
from tests.support.run_factory import (
    DATASET,
    Grown,
    Plan,
    initial_graph,
    started_run,
    write_manifest,
    write_run,
)

from aiperf_hpc.errors import AIPerfError, GraphError, RunDirectoryError
from aiperf_hpc.graph import Graph
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.results.report.document import Report, make_report
from aiperf_hpc.results.report.provenance import ReportManifest, differences
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunStatus, RunView
from aiperf_hpc.results.views.time_split import split_time
from aiperf_hpc.run import records
from aiperf_hpc.run.history.tail import Tail
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.run.records import TIME_OVER
from aiperf_hpc.trial import RoundPhase, StepPart, TimePhase

SMALL = Plan(replicas=1, trials=1, hpo_trials=0, failed=0)


def test_a_step_of_several_ranks_is_split_as_recorded(tmp_path: Path) -> None:
    paths = write_run(tmp_path / "run")
    own = paths.replica_journal("r0").with_name("steps.jsonl")
    with JournalWriter(own, clock=Clock()) as journal:
        for steps, compute in ((10, 2.0), (30, 6.0)):
            seconds = {StepPart.COMPUTE: compute, StepPart.REDUCE: 0.5}
            journal.append(
                records.StepTimes(
                    trial="r0-t1", collective="mpi", ranks=4, steps=steps, seconds=seconds
                )
            )
    text = write_report(RunView(paths)).read_text("utf-8")
    step = document_of(paths)["step"]
    assert (step["collective"], step["ranks"], step["steps"]) == ("mpi", 4, 40)
    assert step["seconds"]["compute"] == pytest.approx(0.2)
    assert step["seconds"]["reduce"] == pytest.approx(0.025)
    assert step["seconds"]["wait"] == 0.0
    assert step["fractions"]["compute"] == pytest.approx(8 / 9)
    assert "A training step on 4 ranks over mpi: the mean of 40 steps" in text
    assert '<td class="number">200.00</td>' in text


def _records(paths: RunPaths) -> list[dict[str, Any]]:
    lines = [line for path in paths.journals() for line in path.read_text("utf-8").splitlines()]
    return [json.loads(line) for line in lines]


def _operations_of(paths: RunPaths, graph: str) -> tuple[Counter[str], Counter[str]]:
    """Return one sample's forward and backward operations by kind of layer."""
    counted = count(Graph.from_json(paths.graph(graph).read_text("utf-8"))).by_kind()
    forward = Counter({kind: each.forward for kind, each in counted.items()})
    return forward, Counter({kind: each.backward for kind, each in counted.items()})


def test_every_number_of_the_score_is_recounted_from_the_files(
    default_run: RunPaths, document: dict[str, Any]
) -> None:
    paths, found = default_run, _records(default_run)
    events = [record["event"] for record in found]
    graph_of = {e["trial"]: e["graph"] for e in events if e["type"] == "trial_started"}
    counted = {graph: _operations_of(paths, graph) for graph in set(graph_of.values())}
    start = next(r["utc"] for r in found if r["event"]["type"] == "run_started")
    end = next(r["utc"] for r in found if r["event"]["type"] == "run_ended")
    forward: Counter[str] = Counter()
    backward: Counter[str] = Counter()
    samples = [0, 0]
    own: Counter[str] = Counter()
    for event in (each for each in events if each["type"] == "progress"):
        once, back = counted[graph_of[event["trial"]]]
        train, validation = event["train_samples"], event["validation_samples"]
        samples[0] += train
        samples[1] += validation
        for kind, operations in once.items():
            forward[kind] += (train + validation) * operations
            own[event["trial"]] += (train + validation) * operations
        for kind, operations in back.items():
            backward[kind] += train * operations
            own[event["trial"]] += train * operations
    total = forward.total() + backward.total()
    results = [event for event in events if event["type"] == "evaluated"]
    error = min(1 - each["sums"]["correct"] / each["samples"] for each in results)

    score = document["score"]
    assert score["operations"] == total > 0
    assert score["elapsed_seconds"] == end - start
    assert score["ops"] == pytest.approx(total / (end - start), rel=1e-12)
    assert score["error"] == pytest.approx(error, rel=1e-12)
    assert score["regulated"] == pytest.approx(-math.log(error) * total / (end - start), rel=1e-12)

    split = document["operations"]
    assert split["total"] == total
    assert (split["forward"], split["backward"]) == (forward.total(), backward.total())
    assert split["forward"] == split["training_forward"] + split["validation_forward"]
    assert [split["train_samples"], split["validation_samples"]] == samples
    by_kind = {kind: (o["forward"], o["backward"]) for kind, o in split["by_kind"].items()}
    assert by_kind == {kind: (forward[kind], backward[kind]) for kind in forward}
    assert {t["id"]: t["operations"] for t in document["trials"]} == {t: own[t] for t in graph_of}

    best = document["best"]
    once, back = counted[best["graph"]]
    assert best["accuracy"] == pytest.approx(1 - error)
    assert (best["forward"], best["backward"]) == (once.total(), back.total())
    assert document["series"][-1] == score


def test_every_second_is_accounted_for(tmp_path: Path) -> None:
    document, _, paths = reported(tmp_path, Plan(replicas=3))
    elapsed = document["score"]["elapsed_seconds"]
    recorded: Counter[str] = Counter()
    for record in _records(paths):
        if record["event"]["type"] == "time_spent":
            for phase, seconds in record["event"]["seconds"].items():
                recorded[phase] += seconds
    total = document["time"]["phases"]
    for phase in TimePhase:
        assert total[phase]["seconds"] == pytest.approx(recorded[phase])
    assert total["unrecorded"]["seconds"] == pytest.approx(3 * elapsed - sum(recorded.values()))
    for split in (document["time"], *(r["time"] for r in document["replicas"])):
        phases = split["phases"]
        assert list(phases) == [*TimePhase, "unrecorded"]
        assert sum(p["seconds"] for p in phases.values()) == pytest.approx(split["elapsed_seconds"])
        assert sum(p["fraction"] for p in phases.values()) == pytest.approx(1.0)
        assert split["train_evaluate_fraction"] == pytest.approx(
            (phases["train"]["seconds"] + phases["evaluate"]["seconds"]) / split["elapsed_seconds"]
        )
    assert document["time"]["elapsed_seconds"] == pytest.approx(3 * elapsed)


def test_a_node_that_never_came_up_has_unrecorded_time(tmp_path: Path) -> None:
    paths = write_run(tmp_path, SMALL)
    write_manifest(paths, Plan(replicas=2))
    report = make_report(RunView.read(paths))
    assert report.time.elapsed_seconds == pytest.approx(2 * report.score.elapsed_seconds)
    assert report.time.phases["unrecorded"].fraction > 0.5


def test_more_time_recorded_than_elapsed_is_said_and_shares_stay_shares() -> None:
    split = split_time({TimePhase.TRAIN: 90.0, TimePhase.EVALUATE: 30.0}, 100.0)
    assert split.elapsed_seconds == 120.0
    assert split.phases["unrecorded"].seconds == 0.0
    assert split.train_evaluate_fraction == 1.0


def test_samples_after_the_end_have_no_credit_and_are_a_problem(tmp_path: Path) -> None:
    with started_run(tmp_path) as run:
        worker, paths = run.worker, run.paths
        trial = worker.begin(Grown(initial_graph(worker.config)), RoundPhase.WARMUP, 1)
        worker.train(trial, 1, 10.0)
        worker.evaluate(trial, 1, 200, 1.0)
        run.primary.end()
        worker.train(trial, 2, 10.0)
        worker.evaluate(trial, 2, 359, 1.0)
        worker.spend(trial, {TimePhase.TRAIN: 20.0})
    view = RunView.read(paths)
    report, status = make_report(view), view.status()
    assert (status.score, status.best_accuracy) == (report.score, 200 / 360)
    assert report.score.error == pytest.approx(1 - 200 / 360)
    assert report.operations.train_samples == DATASET.train_samples
    assert report.operations.total == report.score.operations
    (row,) = report.trials
    assert row.operations == report.score.operations
    counted = report.operations
    assert row.train_samples == counted.train_samples
    assert row.validation_samples == counted.validation_samples
    assert (row.epochs, row.best_accuracy) == (1, 200 / 360)
    assert row.started_seconds + row.seconds == pytest.approx(report.score.elapsed_seconds)
    assert report.problems.clock == (
        "3 records of executed samples are later than the end: no credit",
        "r0 recorded 9.0 s more than the run took",
    )


def test_the_document_says_what_the_run_was(
    default_run: RunPaths, document: dict[str, Any], page: str
) -> None:
    assert (document["step"], document["network_wait"], document["storage"]) == (None, None, [])
    for said in ("A training step on", "waited", "Waiting for storage"):
        assert said not in page
    manifest = RunView(default_run).manifest
    assert document["schema_version"] == 3
    assert document["run_id"] == manifest.run_id
    assert document["final"] is True
    assert document["end_reason"] == TIME_OVER
    assert document["started"] == "2025-06-15T15:06:40.000Z"
    assert document["versions"] == manifest.versions
    assert document["commit"] == manifest.commit
    assert document["config"] == manifest.config.model_dump(mode="json")
    assert document["datasets"] == [DATASET.model_dump(mode="json")]
    assert document["valid"] is False
    broken = {violation["rule"] for violation in document["violations"]}
    assert broken == {"duration", "dataset", "initial network", "TPE"}
    assert [r["machine"]["host"] for r in document["replicas"]] == ["node000", "node001"]
    states = {"queued": 0, "completed": 10, "stopped early": 2, "failed": 2}
    assert document["trials_by_state"] == states
    assert Report.model_validate(document).run_id == manifest.run_id


def test_the_report_takes_these_fields_of_the_status() -> None:
    """They have defaults, which a renamed field would leave unnoticed."""
    names = {
        "metric", "baseline", "error_unavailable_reason", "models", "clock", "witnesses",
        "elasticity", "kinds",
    }  # fmt: skip
    assert names <= Report.model_fields.keys() & RunStatus.model_fields.keys()


# The manifest.


def test_the_manifest_has_the_hash_of_every_source(
    default_run: RunPaths, document: dict[str, Any]
) -> None:
    paths = default_run
    manifest = ReportManifest.model_validate_json(paths.report_manifest.read_bytes())
    listed = {file.path: file for file in manifest.files}
    expected = [paths.manifest, *paths.journals()]
    expected += [paths.graph(trial["graph"]) for trial in document["trials"]]
    expected += [paths.report_json, paths.report_html, paths.result_text, paths.report_summary]
    expected += [paths.report_schema, paths.result_log]
    assert set(listed) == {str(path.relative_to(paths.root)) for path in expected}
    for path in expected:
        content = path.read_bytes()
        file = listed[str(path.relative_to(paths.root))]
        assert (file.bytes, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert manifest.final


def test_the_manifest_of_a_growing_journal_covers_what_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_run(tmp_path, Plan(ended=False))
    journal = paths.replica_journal("r0")
    before = journal.read_bytes()

    def growing(view: RunView) -> Report:
        report = make_report(view)
        with journal.open("ab") as file:
            file.write(b'{"another": "line"}\n{"and a torn')
        return report

    monkeypatch.setattr("aiperf_hpc.results.report.writer.make_report", growing)
    write_report(RunView(paths))
    manifest = ReportManifest.model_validate_json(paths.report_manifest.read_bytes())
    (file,) = [f for f in manifest.files if f.path == "replicas/r0/0.0/journal.jsonl"]
    assert (file.bytes, file.sha256) == (len(before), hashlib.sha256(before).hexdigest())
    assert not manifest.final


@pytest.mark.parametrize("damage", ["gone", "damaged"])
def test_a_final_report_without_its_manifest_stays_as_it_is(tmp_path: Path, damage: str) -> None:
    """Nobody can tell any more whether the records are those that it was made from."""
    _, text, paths = reported(tmp_path, SMALL)
    before = paths.report_json.read_bytes()
    journal = paths.replica_journal("r0")
    journal.write_text(re.sub(r'"correct":\d+', '"correct":360', journal.read_text()), "utf-8")
    content = paths.report_manifest.read_bytes()
    paths.report_manifest.write_bytes(content[:-40])
    if damage == "gone":
        paths.report_manifest.unlink()
    said = "are unknown: manifest.json .*; restore that file, or move .*/report away for a new"
    with pytest.raises(RunDirectoryError, match=said):
        write_report(RunView(paths))
    assert paths.report_json.read_bytes() == before
    assert paths.report_html.read_text("utf-8") == text
    paths.report_manifest.write_bytes(content)
    with pytest.raises(RunDirectoryError, match="because files have changed since: replicas/r0"):
        write_report(RunView(paths))


def test_a_final_report_stays_also_where_the_end_of_the_run_was_removed(tmp_path: Path) -> None:
    _, _, paths = reported(tmp_path, SMALL)
    lines = paths.primary_journal.read_bytes().splitlines(keepends=True)
    paths.primary_journal.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(RunDirectoryError, match="because files have changed since: primary/"):
        write_report(RunView(paths))


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("file", ["report.json", "report.html", "manifest.json"])
def test_a_report_whose_writing_was_interrupted_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, before: bool
) -> None:
    """By a disk that is full from this file on; with a final report there before, or none."""
    paths = write_run(tmp_path, SMALL)
    if before:
        write_report(RunView(paths))
    with monkeypatch.context() as patch:
        full = False

        def write(path: Path, content: str | bytes) -> None:
            nonlocal full
            full |= path.name == file
            if full:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            write_whole(path, content)

        patch.setattr("aiperf_hpc.results.report.writer.write_whole", write)
        patch.setattr("aiperf_hpc.results.report.writer.render", lambda *_: "another page")
        with pytest.raises(RunDirectoryError, match=f"cannot write the report .*{file}: No space"):
            write_report(RunView(paths))
    write_report(RunView(paths))
    assert differences(RunView.read(paths)) == []


@pytest.mark.parametrize(
    "late", ["replicas/r0/0.0/journal.jsonl", "replicas/r1/0.0/search-0.jsonl"]
)
def test_a_journal_that_was_listed_late_does_not_change_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """Verification reads all journals in their order."""
    paths = write_run(tmp_path, Plan(replicas=2, trials=1, hpo_trials=0, failed=0))
    unknown = Tail.unknown

    def listed(tail: Tail, replica: str | None = None) -> list[Path]:
        return [path for path in unknown(tail, replica) if path != paths.root / late]

    with monkeypatch.context() as patch:
        patch.setattr(Tail, "unknown", listed)
        view = RunView.read(paths)
    view.refresh()
    assert list(view.history.bytes_read)[-1] == paths.root / late
    write_report(view)
    assert check_rule("report", paths).failures == ()


def _lose_all_graphs(paths: RunPaths) -> None:
    shutil.rmtree(paths.candidates)


def _damage_a_graph(paths: RunPaths) -> None:
    first, *_ = sorted(paths.candidates.glob("*.json"))
    first.write_bytes(first.read_bytes()[:99])


def _exchange_graphs(paths: RunPaths) -> None:
    first, second, *_ = sorted(paths.candidates.glob("*.json"))
    first.write_bytes(second.read_bytes())


@pytest.mark.parametrize(
    ("lose", "what"),
    [
        (_lose_all_graphs, "No such file"),
        (_damage_a_graph, r"\.json: "),
        (_exchange_graphs, "its content has the hash"),
    ],
)
def test_lost_graphs_are_grown_again_which_the_report_and_verify_say(
    tmp_path: Path, lose: Callable[[RunPaths], None], what: str
) -> None:
    whole, paths = (write_run(tmp_path / name, Plan(replicas=1)) for name in ("whole", "lost"))
    lose(paths)
    for each in (whole, paths):
        write_report(RunView(each))
    found, expected = make_report(RunView.read(paths)), make_report(RunView.read(whole))
    lost = found.problems.files
    assert lost
    for line in lost:
        if not line.endswith("is missing; no sample of it was executed"):  # Of a failed trial.
            assert re.search(what, line)
            assert line.endswith("; it was grown again from the recorded morphisms")
    assert any("grown again" in line for line in lost)
    assert expected.problems.files == ()
    # In all else it is what it would have been.
    assert found.model_copy(update={"problems": expected.problems}) == expected
    before, after = verify(RunView(whole)), verify(RunView(paths))
    (failed,) = (b for a, b in zip(before, after, strict=True) if a.passed != b.passed)
    assert failed.rule == "graphs"
    assert len(failed.failures) == len(lost)
    assert all(re.search(what, failure) for failure in failed.failures)


def test_the_status_says_that_stored_graphs_are_gone(tmp_path: Path) -> None:
    paths = write_run(tmp_path, Plan(replicas=1))
    assert RunView.read(paths).status().problems == ()
    graphs = sorted(paths.candidates.glob("*.json"))
    _lose_all_graphs(paths)
    (problem,) = RunView.read(paths).status().problems
    assert problem == (
        f"the stored graph {graphs[0]} and {len(graphs) - 1} more are gone; "
        "the report derives missing graphs again"
    )


def test_a_lost_graph_that_cannot_be_grown_again_is_an_error_and_no_score(tmp_path: Path) -> None:
    """Its trial's record tells of a morphism that its parent's graph has no place for."""
    paths = write_run(tmp_path, Plan(replicas=1))
    _lose_all_graphs(paths)
    path = paths.replica_journal("r0")
    text = path.read_text("utf-8")
    assert '"after":"' in text
    path.write_text(text.replace('"after":"', '"after":"no_'), "utf-8")
    with pytest.raises(GraphError, match="cannot read the graph .* cannot be grown again either"):
        write_report(RunView(paths))
    assert not paths.report_json.exists()


def test_a_report_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    paths = write_run(tmp_path, Plan(replicas=1, trials=1, hpo_trials=0))
    paths.report.write_text("in the way")
    with pytest.raises(RunDirectoryError, match="cannot write the report of"):
        write_report(RunView(paths))


def test_recorded_operations_that_the_graphs_do_not_count_make_no_report(tmp_path: Path) -> None:
    paths = write_run(tmp_path, SMALL)
    journal = paths.replica_journal("r0")
    text = journal.read_text("utf-8")
    changed = text.replace('"train_operations":', '"train_operations":9', 1)
    assert changed != text
    journal.write_text(changed, "utf-8")
    with pytest.raises(AIPerfError, match=r"their graphs count .*aiperf verify"):
        write_report(RunView(paths))
    assert not paths.report_json.exists()


def test_a_row_has_the_quality_of_each_of_its_evaluations(tmp_path: Path) -> None:
    document, _, paths = reported(tmp_path, SMALL)
    (row,) = document["trials"]
    evaluated = [r["event"] for r in _records(paths) if r["event"]["type"] == "evaluated"]
    assert row["qualities"] == [e["sums"]["correct"] / e["samples"] for e in evaluated]
    assert row["first_epoch"] == 1
