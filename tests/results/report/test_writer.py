"""The report, against the run's own files read by other means."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from tests.support.clock import START, Clock
from tests.support.run_factory import (
    DATASET,
    Grown,
    Plan,
    Worker,
    initial_graph,
    refreshed,
    started_run,
    write_manifest,
    write_run,
)

from aiperf_hpc.errors import AIPerfError, GraphError, RunDirectoryError
from aiperf_hpc.objective import ACCURACY
from aiperf_hpc.results.report import html
from aiperf_hpc.results.report.model import Report, make_report
from aiperf_hpc.results.report.plots.figure import quality_colour
from aiperf_hpc.results.report.plots.over_time import score_plots
from aiperf_hpc.results.report.provenance import ReportManifest, differences
from aiperf_hpc.results.report.writer import summary_lines, write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.results.views.time_split import split_time
from aiperf_hpc.run import records
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.run.records import TIME_OVER
from aiperf_hpc.trial import RoundPhase, StepPart, TimePhase
from aiperf_hpc.verification.audit import verify

SMALL = Plan(replicas=1, trials=1, hpo_trials=0, failed=0)
OF_THE_RUN = re.compile(r"(\.\./)?[\w%][\w./%-]*$")
"""A link to a file in the report's folder, or below the run's."""
HOSTILE = "<script>alert('1')</script>\"><img src=x onerror=alert(2)>&amp;"


def _document(paths: RunPaths, *, report: bool = False) -> dict[str, Any]:
    """Return the document of a run's report, which is written before if it is to be."""
    if report:
        write_report(RunView(paths))
    loaded = json.loads(paths.report_json.read_text("utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def _reported(root: Path, plan: Plan | None = None) -> tuple[dict[str, Any], str, RunPaths]:
    paths = write_run(root, plan)
    return _document(paths, report=True), paths.report_html.read_text("utf-8"), paths


@pytest.fixture(scope="module")
def page(default_run: RunPaths) -> str:
    return default_run.report_html.read_text("utf-8")


@pytest.fixture(scope="module")
def document(default_run: RunPaths) -> dict[str, Any]:
    return _document(default_run)


def test_a_step_of_several_ranks_is_split_as_recorded(tmp_path: Path) -> None:
    paths = write_run(tmp_path / "run")
    own = paths.replica_journal("r0").with_name("steps.jsonl")
    with JournalWriter(own, clock=Clock()) as journal:
        for steps, compute, reduce in ((10, 2.0, 0.5), (30, 6.0, 0.5)):
            journal.append(
                records.StepTimes(
                    trial="r0-t1",
                    collective="mpi",
                    ranks=4,
                    steps=steps,
                    seconds={StepPart.COMPUTE: compute, StepPart.REDUCE: reduce},
                )
            )
    text = write_report(RunView(paths)).read_text("utf-8")
    step = _document(paths)["step"]
    assert (step["collective"], step["ranks"], step["steps"]) == ("mpi", 4, 40)
    assert step["seconds"]["compute"] == pytest.approx(0.2)
    assert step["seconds"]["reduce"] == pytest.approx(0.025)
    assert step["seconds"]["wait"] == 0.0
    assert step["shares"]["compute"] == pytest.approx(8 / 9)
    assert "A training step on 4 ranks over mpi: the mean of 40 steps" in text
    assert '<td class="number">200.00</td>' in text


# An independent recount: from the lines of the journals and the JSON of the graphs.


def _records(paths: RunPaths) -> list[dict[str, Any]]:
    lines = [line for path in paths.journals() for line in path.read_text("utf-8").splitlines()]
    return [json.loads(line) for line in lines]


def _operations_of(paths: RunPaths, graph: str) -> tuple[Counter[str], Counter[str]]:
    """Count one sample: forward and backward operations by kind, with shapes of its own."""
    nodes = json.loads(paths.graph(graph).read_text("utf-8"))["nodes"]
    shape: dict[str, tuple[int, ...]] = {}
    forward: Counter[str] = Counter()
    backward: Counter[str] = Counter()
    first_conv = True
    for node in nodes:
        kind, name = node["kind"], node["name"]
        below = [shape[source] for source in node["inputs"]]
        match kind:
            case "input":
                shape[name] = tuple(node["shape"])
            case "conv2d":
                k, stride, out = node["kernel"], node["stride"], node["channels"]
                height, width = -(-below[0][0] // stride), -(-below[0][1] // stride)
                shape[name] = (height, width, out)
                product = 2 * k * k * below[0][2] * out * height * width
                forward[kind] += product
                gradients = product if first_conv else 2 * product
                backward[kind] += gradients + 2 * k * k * below[0][2] * out
                first_conv = False
            case "batch_norm":
                shape[name] = below[0]
                forward[kind] += 7 * math.prod(below[0])
            case "relu":
                shape[name] = below[0]
                forward[kind] += math.prod(below[0])
            case "add":
                shape[name] = below[0]
                forward[kind] += (len(below) - 1) * math.prod(below[0])
            case "global_average_pool2d":
                shape[name] = below[0][2:]
                forward[kind] += math.prod(below[0]) + 4 * below[0][2]
            case "dense":
                shape[name] = (node["units"],)
                into, out = below[0][0], node["units"]
                forward[kind] += 2 * into * out
                backward[kind] += 2 * (2 * into * out + (into + 1) * out)
            case "softmax":
                shape[name] = below[0]
                forward[kind] += 13 * below[0][0]
            case _:
                raise AssertionError(kind)
    return forward, backward


def test_every_number_of_the_score_is_recounted_from_the_files(
    default_run: RunPaths, document: dict[str, Any]
) -> None:
    paths, found = default_run, _records(default_run)
    graph_of = {
        r["event"]["trial"]: r["event"]["graph"]
        for r in found
        if r["event"]["type"] == "trial_started"
    }
    counted = {graph: _operations_of(paths, graph) for graph in set(graph_of.values())}
    start = next(r["utc"] for r in found if r["event"]["type"] == "run_started")
    end = next(r["utc"] for r in found if r["event"]["type"] == "run_ended")
    forward: Counter[str] = Counter()
    backward: Counter[str] = Counter()
    samples = [0, 0]
    own: Counter[str] = Counter()
    for record in found:
        event = record["event"]
        if event["type"] != "progress":
            continue
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
    error = min(
        1 - r["event"]["sums"]["correct"] / r["event"]["samples"]
        for r in found
        if r["event"]["type"] == "evaluated"
    )

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
    assert {
        kind: (o["forward"], o["backward"])
        for kind, o in split["by_kind"].items()
        if kind != "input"
    } == {kind: (forward[kind], backward[kind]) for kind in forward}
    assert {t["id"]: t["operations"] for t in document["trials"]} == {t: own[t] for t in graph_of}

    best = document["best"]
    once, back = counted[best["graph"]]
    assert best["accuracy"] == pytest.approx(1 - error)
    assert (best["forward"], best["backward"]) == (once.total(), back.total())


def test_the_series_ends_with_the_score(document: dict[str, Any]) -> None:
    series = document["series"]
    assert series[-1] == document["score"]
    assert series[0]["elapsed_seconds"] == pytest.approx(0.02 * 3600)
    assert all(p["ops"] == p["operations"] / p["elapsed_seconds"] for p in series)


def test_every_second_is_accounted_for(tmp_path: Path) -> None:
    document, _, paths = _reported(tmp_path, Plan(replicas=3))
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
        assert sum(p["share"] for p in phases.values()) == pytest.approx(1.0)
        assert split["train_evaluate_share"] == pytest.approx(
            (phases["train"]["seconds"] + phases["evaluate"]["seconds"]) / split["elapsed_seconds"]
        )
    assert document["time"]["elapsed_seconds"] == pytest.approx(3 * elapsed)


def test_a_node_that_never_came_up_has_unrecorded_time(tmp_path: Path) -> None:
    plan = Plan(replicas=1, trials=1, hpo_trials=0, failed=0)
    paths = write_run(tmp_path, plan)
    write_manifest(paths, Plan(replicas=2))
    report = make_report(refreshed(paths))
    assert report.time.elapsed_seconds == pytest.approx(2 * report.score.elapsed_seconds)
    assert report.time.phases["unrecorded"].share > 0.5


def test_more_time_recorded_than_elapsed_is_said_and_shares_stay_shares() -> None:
    split = split_time({TimePhase.TRAIN: 90.0, TimePhase.EVALUATE: 30.0}, 100.0)
    assert split.elapsed_seconds == 120.0
    assert split.phases["unrecorded"].seconds == 0.0
    assert split.train_evaluate_share == 1.0


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
    report = make_report(refreshed(paths))
    assert report.score.error == pytest.approx(1 - 200 / 360)
    assert report.operations.train_samples == DATASET.train_samples
    assert report.operations.total == report.score.operations
    (row,) = report.trials
    assert row.operations == report.score.operations
    assert (row.train_samples, row.validation_samples) == (
        report.operations.train_samples,
        report.operations.validation_samples,
    )
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
    assert document["schema_version"] == 2
    assert document["run_id"] == manifest.run_id
    assert document["final"] is True
    assert document["end_reason"] == TIME_OVER
    assert document["started"] == "2025-06-15T15:06:40.000Z"
    assert document["versions"] == manifest.versions
    assert document["commit"] == manifest.commit
    assert document["config"] == manifest.config.model_dump(mode="json")
    assert document["datasets"] == [DATASET.model_dump(mode="json")]
    assert document["valid"] is False
    assert {b["rule"] for b in document["invalid"]} == {
        "duration",
        "dataset",
        "initial network",
        "TPE",
    }
    assert [r["machine"]["host"] for r in document["replicas"]] == ["node000", "node001"]
    assert document["trials_by_state"] == {
        "queued": 0,
        "completed": 10,
        "stopped early": 2,
        "failed": 2,
    }
    assert Report.model_validate(document).run_id == manifest.run_id


def test_the_same_run_gives_the_same_report_to_the_byte(tmp_path: Path) -> None:
    paths = write_run(tmp_path)
    written = []
    for _ in range(2):
        write_report(RunView(paths))
        files = (paths.report_json, paths.report_html, paths.report_manifest)
        written.append([file.read_bytes() for file in files])
    assert written[0] == written[1]


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
    _, text, paths = _reported(tmp_path, SMALL)
    before = paths.report_json.read_bytes()
    journal = paths.replica_journal("r0")
    journal.write_text(re.sub(r'"correct":\d+', '"correct":360', journal.read_text()), "utf-8")
    content = paths.report_manifest.read_bytes()
    paths.report_manifest.write_bytes(content[:-40])
    if damage == "gone":
        paths.report_manifest.unlink()
    said = "is not known: manifest.json .*; put that file back, or move .*/report away for a new"
    with pytest.raises(RunDirectoryError, match=said):
        write_report(RunView(paths))
    assert paths.report_json.read_bytes() == before
    assert paths.report_html.read_text("utf-8") == text
    paths.report_manifest.write_bytes(content)
    with pytest.raises(RunDirectoryError, match="because files have changed since: replicas/r0"):
        write_report(RunView(paths))


def test_a_final_report_stays_also_where_the_end_of_the_run_was_removed(tmp_path: Path) -> None:
    _, _, paths = _reported(tmp_path, SMALL)
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
    assert differences(refreshed(paths)) == []


# The page.

VOID = {"meta", "link", "br", "img", "hr", "input"}


class _Page(HTMLParser):
    """Checks that every element is closed in its place, and collects what matters."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), (tag, attrs)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def _check_page(text: str) -> _Page:
    """Check what holds for every report."""
    parsed = _Page(text)
    tags = {tag for tag, _ in parsed.elements}
    forbidden = {"script", "link", "iframe", "img", "image", "object", "embed", "base", "form"}
    assert tags.isdisjoint(forbidden)
    for tag, attributes in parsed.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("href", "xlink:href", "src", "action", "data"):
                assert value is not None
                assert value.startswith("#") or (tag == "a" and OF_THE_RUN.match(value)), value
    assert "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))
    ids = [a["id"] for _, a in parsed.elements if a.get("id")]
    assert len(ids) == len(set(ids))
    targets = {str(a.get("href", "#")) for a in parsed.named("a")}
    links = {target[1:] for target in targets if target.startswith("#")}
    labels = {str(a["aria-labelledby"]) for _, a in parsed.elements if "aria-labelledby" in a}
    assert links | labels <= set(ids)
    referred = set(re.findall(r"url\(#([^)]*)\)", text))
    referred |= {str(a["xlink:href"])[1:] for a in parsed.named("use")}
    assert referred <= set(ids)
    assert len(parsed.named("caption")) == len(parsed.named("table"))
    assert all("scope" in attributes for attributes in parsed.named("th"))
    for tag, attributes in parsed.elements:
        if attributes.get("role") == "img":
            assert attributes.get("aria-label"), tag
        if attributes.get("role") == "region":
            assert attributes.get("tabindex") == "0", "scrolled by keyboard"
            assert attributes.get("aria-label") or attributes.get("aria-labelledby")
    assert [a.get("lang") for a in parsed.named("html")] == ["en"]
    assert len(parsed.named("h1")) == 1
    assert "nan" not in text.lower().replace("finan", "")
    assert "None:" not in " ".join(parsed.text).replace("None: every line", "")
    return parsed


def test_the_page_is_whole_has_the_exact_numbers_and_needs_nothing_else(
    page: str, document: dict[str, Any]
) -> None:
    parsed = _check_page(page)
    words = " ".join(" ".join(parsed.text).split())
    assert "INVALID" in words
    assert "digits; ImageNet is required" in words
    assert "Content-Security-Policy" in page
    assert {"h2", "h3", "svg", "details"} <= {tag for tag, _ in parsed.elements}
    assert f"{document['score']['operations']:,}" in page
    assert f"{document['score']['ops']:,.1f}" in page
    assert f"{document['score']['regulated']:,.1f}" in page
    for trial in document["trials"]:
        assert page.count(f">{trial['id']}<") >= 2  # in the table, and in the tree
    # Score, regulated score, error; what was expected; learning curves, hyperparameters.
    assert len(parsed.named("figure")) == 6
    uses = [str(a["xlink:href"]) for a in parsed.named("use")]
    for name in ("ops", "regulated", "error"):
        # One mark a point and one more on the last; ticks are drawn with marks, too.
        counts = Counter(use for use in uses if use.startswith(f"#{name}-"))
        points = [p for p in document["series"] if name != "regulated" or p["error"] is not None]
        assert len(points) in counts.values()


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    plan = Plan(replicas=1, failure=HOSTILE, run_id=HOSTILE)
    document, text, paths = _reported(tmp_path, plan)
    parsed = _check_page(text)
    assert document["trials"][-1]["reason"] == HOSTILE
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert HOSTILE in "".join(parsed.text)
    assert parsed.named("h1") == [{}]
    with Worker(paths, "r0", RunView(paths).manifest.config) as worker:
        worker.write(records.SearchFailed(reason=HOSTILE))
        worker.journal.append(records.ProposalRejected(proposal=HOSTILE, reason=HOSTILE))
    _check_page(write_report(RunView(paths)).read_text("utf-8"))


def test_waits_for_storage_are_in_the_report_with_their_times(tmp_path: Path) -> None:
    paths = write_run(tmp_path, Plan(replicas=2, trials=5))
    why = f"cannot write {HOSTILE}: No space left on device"
    waits = [
        records.StorageWaited(began_utc=START + began, seconds=seconds, why=why)
        for began, seconds in ((100.0, 33.0), (60.0, 7.5))
    ]
    with JournalWriter(paths.primary_journal, clock=Clock()) as journal:
        journal.append(waits[0])
    with Worker(paths, "r1", RunView(paths).manifest.config) as worker:
        for wait in waits:
            worker.write(wait)
    text = write_report(RunView(paths)).read_text("utf-8")
    primary, replica = _document(paths)["storage"]
    assert (primary["who"], primary["seconds"], len(primary["waits"])) == ("primary", 33.0, 1)
    assert (replica["who"], replica["seconds"]) == ("r1", 40.5)
    assert [(w["began_seconds"], w["seconds"]) for w in replica["waits"]] == [
        (60.0, 7.5),
        (100.0, 33.0),
    ]
    words = " ".join(" ".join(_check_page(text).text).split())
    assert "primary: 33.0 s; 33.0 s from 1 min 40 s after the start, cannot write" in words
    view = RunView(paths)
    view.refresh()
    line = "Storage          waited for: primary 33.0 s, r1 40.5 s"
    assert line in summary_lines(view)


def test_a_run_that_has_not_started(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    write_manifest(paths, Plan())
    text = write_report(RunView(paths)).read_text("utf-8")
    parsed = _check_page(text)
    document = _document(paths)
    assert document["started"] is None
    assert document["series"] == []
    assert document["best"] is None
    assert "The run has not started." in " ".join(" ".join(parsed.text).split())


def test_a_run_that_did_nothing(tmp_path: Path) -> None:
    document, text, _ = _reported(tmp_path, Plan(trials=0, hpo_trials=0))
    _check_page(text)
    assert document["score"]["operations"] == 0
    assert document["score"]["regulated"] is None
    assert document["trials"] == []


def test_a_run_without_an_evaluation(tmp_path: Path) -> None:
    document, text, paths = _reported(tmp_path, Plan(replicas=1, evaluated=False))
    parsed = _check_page(text)
    assert document["score"]["operations"] > 0
    assert document["score"]["error"] is None
    assert document["best"] is None
    assert len(parsed.named("figure")) == 1
    lines = summary_lines(refreshed(paths))
    assert "Regulated score  none: no evaluation was completed" in lines


def test_an_error_of_zero(tmp_path: Path) -> None:
    document, text, _ = _reported(tmp_path, Plan(replicas=1, ceiling=9.0))
    parsed = _check_page(text)
    score = document["score"]
    assert score["error"] == 0.0
    assert score["regulated"] == pytest.approx(math.log(360) * score["ops"])
    words = " ".join(" ".join(parsed.text).split())
    assert "counts as one validation sample" in words


def test_a_run_that_is_still_going(tmp_path: Path) -> None:
    document, text, _ = _reported(tmp_path, Plan(ended=False))
    parsed = _check_page(text)
    assert document["final"] is False
    assert {"rule": "duration", "reason": "the run has not ended"} in document["invalid"]
    words = " ".join(" ".join(parsed.text).split())
    assert "Not final." in words
    assert "INVALID so far" in words
    assert document["trials_by_state"]["training"] == 2


def test_a_torn_journal_and_a_corrupt_line(tmp_path: Path) -> None:
    paths = write_run(tmp_path)
    journal = paths.replica_journal("r1")
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[5] = b"\x00garbage <b>\n"
    journal.write_bytes(b"".join(lines) + b'{"v":1,"seq":')
    journal.with_name("journal.jsonl.torn-123").write_bytes(b'{"v":')
    text = write_report(RunView(paths)).read_text("utf-8")
    _check_page(text)
    document = _document(paths)
    (problem,) = document["problems"]["journals"]
    assert problem.startswith("replicas/r1/0.0/journal.jsonl, line 6: not a record")
    assert document["problems"]["torn"] == ["replicas/r1/0.0/journal.jsonl"]
    assert document["problems"]["set_aside"] == ["replicas/r1/0.0/journal.jsonl.torn-123"]
    assert "records" in {b["rule"] for b in document["invalid"]}
    assert "replicas/r1/0.0/journal.jsonl, line 6" in text
    manifest = ReportManifest.model_validate_json(paths.report_manifest.read_bytes())
    (file,) = [f for f in manifest.files if f.path == "replicas/r1/0.0/journal.jsonl"]
    assert file.bytes == journal.stat().st_size == len(b"".join(lines)) + 13


def test_a_lost_journal_of_the_primary_leaves_a_report_without_a_score(tmp_path: Path) -> None:
    paths = write_run(tmp_path)
    paths.primary_journal.unlink()
    _check_page(write_report(RunView(paths)).read_text("utf-8"))
    document = _document(paths)
    assert document["score"]["ops"] == 0.0
    assert document["final"] is False
    assert len(document["trials"]) == 14


def test_a_run_of_hours(tmp_path: Path) -> None:
    plan = Plan(replicas=1, epoch_seconds=600.0, config={"score": {"interval_hours": 0.1}})
    _, text, _ = _reported(tmp_path, plan)
    _check_page(text)
    assert "hours since the start" in text


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
    found, expected = make_report(refreshed(paths)), make_report(refreshed(whole))
    lost = found.problems.files
    assert lost
    for line in lost:
        if not line.endswith("is gone; no sample of it was executed"):  # Of a failed trial.
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
    assert refreshed(paths).status().problems == ()
    graphs = sorted(paths.candidates.glob("*.json"))
    _lose_all_graphs(paths)
    (problem,) = refreshed(paths).status().problems
    assert problem == (
        f"the stored graph {graphs[0]} and {len(graphs) - 1} more are gone; "
        "the report grows lost graphs again"
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


def test_a_large_run_stays_small_and_quick(tmp_path: Path) -> None:
    """300 trials and 10,000 score points."""
    plan = Plan(
        replicas=20,
        trials=15,
        hpo_trials=12,
        failed=2,
        epoch_seconds=300.0,
        config={"score": {"interval_hours": 5e-4}},
    )
    paths = write_run(tmp_path, plan)
    begin = time.process_time()
    text = write_report(RunView(paths)).read_text("utf-8")
    seconds = time.process_time() - begin
    document = _document(paths)
    assert len(document["trials"]) == 300
    assert len(document["series"]) >= 8_000
    assert len(text) < 5_000_000
    assert seconds < 20.0
    parsed = _check_page(text)
    assert len(parsed.named("use")) < 1_200
    assert "report.json has all" in text


def test_a_page_of_many_trials_keeps_the_best_and_their_ancestors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "MOST_ROWS", 5)
    monkeypatch.setattr(html, "MOST_REPLICAS", 2)
    document, text, _ = _reported(tmp_path, Plan(replicas=3))
    parsed = _check_page(text)
    rows = sum("id" in attributes for attributes in parsed.named("tr"))
    assert 5 <= rows < len(document["trials"])
    shown = {t.id: t for t in html._kept(Report.model_validate(document).trials, ACCURACY)}
    assert len(shown) == rows
    assert all(t.parent in shown for t in shown.values() if t.parent is not None)
    assert f">{document['best']['trial']}<" in text
    assert "2 of 3 replicas" in text


# The summary.


def test_the_summary(default_run: RunPaths) -> None:
    view = refreshed(default_run)
    score = view.final()
    assert score.regulated is not None
    assert score.error is not None
    lines = summary_lines(view)
    assert lines[-1] == (
        f"Score            {score.ops / 1e6:#.3g} MOPS  ({score.ops:,.1f} operations/s)"
    ).replace(". MOPS", " MOPS")
    assert lines[-2].endswith(f"({score.regulated:,.1f})")
    assert lines[-3] == f"Error            {100 * score.error:.2f}%"
    assert lines[2] == "Trials           10 completed, 2 stopped early, 2 failed"
    assert lines[3] == "Witness          unwitnessed"
    rules = list(dict.fromkeys(v.rule for v in view.violations()))
    assert lines[4] == (
        f"Result           INVALID: this run is not official: {len(rules)} rules violated "
        f"({', '.join(rules)}); `aiperf report {default_run.root}` lists the reasons"
    )


def test_the_summary_of_a_run_without_a_report_names_none(tmp_path: Path) -> None:
    lines = summary_lines(refreshed(write_run(tmp_path, Plan(trials=0, hpo_trials=0))))
    assert lines[-1] == "Score            0 OPS  (0 operations/s)"
    assert "Trials           none" in lines
    assert not any(line.startswith("Report") for line in lines)


# The plots.


def test_no_plot_of_nothing() -> None:
    assert score_plots([], []) == []


def test_the_users_own_settings_change_no_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = refreshed(write_run(tmp_path, Plan(replicas=1)))
    expected = score_plots(view.score(), view.score())
    monkeypatch.setitem(mpl.rcParams, "font.size", 31.0)
    monkeypatch.setitem(mpl.rcParams, "axes.grid", True)
    assert score_plots(view.score(), view.score()) == expected
    assert mpl.rcParams["font.size"] == 31.0


def test_the_colour_scale_ends_where_it_should() -> None:
    assert quality_colour(-1.0) == quality_colour(0.0)
    assert quality_colour(2.0) == quality_colour(1.0)
    assert quality_colour(0.0) != quality_colour(0.5) != quality_colour(1.0)


def test_recorded_operations_that_the_graphs_do_not_count_make_no_report(tmp_path: Path) -> None:
    paths = write_run(tmp_path, Plan(replicas=1, trials=1, hpo_trials=0, failed=0))
    journal = paths.replica_journal("r0")
    text = journal.read_text("utf-8")
    changed = text.replace('"train_operations":', '"train_operations":9', 1)
    assert changed != text
    journal.write_text(changed, "utf-8")
    with pytest.raises(AIPerfError, match=r"their graphs count .*aiperf verify"):
        write_report(RunView(paths))
    assert not paths.report_json.exists()


def test_the_page_has_command_differences_rules_and_links_to_what_it_was_made_from(
    tmp_path: Path,
) -> None:
    paths = write_run(tmp_path, SMALL)
    command = "aiperf start --nodes 1 --set 'a=<b>'"
    manifest = RunView(paths).manifest.model_copy(update={"command": command})
    manifest.save(paths)
    text = write_report(RunView(paths)).read_text("utf-8")
    assert "aiperf start --nodes 1 --set &#39;a=&lt;b&gt;&#39;</pre>" in text
    assert f"Command  : {command}\n" in paths.result_text.read_text("utf-8")
    assert "<code>model.base_width</code></th><td>4</td><td>64</td>" in text
    assert "</td><td>&gt;= 1 h</td><td>no</td>" in text
    links = re.findall(r'<a href="\.\./([^"#]+)"', text)
    assert set(links) == {"run.yaml", *(str(p.relative_to(paths.root)) for p in paths.journals())}
    assert all((paths.report / ".." / link).exists() for link in links)


def test_a_row_has_the_quality_of_each_of_its_evaluations(tmp_path: Path) -> None:
    document, _, paths = _reported(tmp_path, SMALL)
    (row,) = document["trials"]
    evaluated = [r["event"] for r in _records(paths) if r["event"]["type"] == "evaluated"]
    assert row["qualities"] == [e["sums"]["correct"] / e["samples"] for e in evaluated]
    assert row["first_epoch"] == 1
