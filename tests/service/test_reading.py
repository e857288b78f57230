"""What is answered of one run, beyond its status."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient
from tests.service.serving import serving_folder
from tests.support.run_factory import Plan, Primary, write_manifest, write_run

from aiperf_hpc.formatting import percent
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import ReplicaExited, StopRequested
from aiperf_hpc.service.answers.events import EventLog, EventsQuery, EventsQuestion
from aiperf_hpc.service.answers.machines import MOST_OUTPUT_BYTES

RUN = "/api/v1/runs/run"


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    view = RunView.read(write_run(tmp_path_factory.mktemp("served") / "run"))
    write_report(view)
    return view


@pytest.fixture(scope="module")
def client(view: RunView) -> Iterator[TestClient]:
    folder = view.paths.root.parent
    with serving_folder(folder) as client:
        yield client


def _get(client: TestClient, path: str, **query: str | int | list[str] | None) -> Any:  # noqa: ANN401
    answer = client.get(f"{RUN}/{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    ("sort", "key"),
    [
        ("quality", lambda t: t["best_quality"] or -1.0),
        ("epochs", lambda t: t["epochs"]),
        ("parameters", lambda t: t["parameters"]),
        ("round", lambda t: t["round"]),
        ("replica", lambda t: t["replica"]),
        ("started", lambda t: t["started_seconds"]),
        ("batch_size", lambda t: t["hyperparameters"]["batch_size"]),
        ("kernel_size", lambda t: t["hyperparameters"]["kernel_size"] or 0),
        ("seconds", lambda t: t["seconds"]),
    ],
)
def test_trials_are_sorted(client: TestClient, sort: str, key: Any) -> None:  # noqa: ANN401
    found = _get(client, "trials", sort=sort, descending=True)["trials"]
    assert found == sorted(found, key=key, reverse=True)


def test_trials_are_filtered_by_what_they_are(client: TestClient, view: RunView) -> None:
    trial = next(t for t in view.ordered_trials() if t.started.parent is not None)
    for name, value in (("graph", trial.started.graph), ("parent", trial.started.parent)):
        found = _get(client, "trials", **{name: value})["trials"]
        assert trial.id in [t["id"] for t in found]
        assert {t[name] for t in found} == {value}
    assert {t["phase"] for t in _get(client, "trials", phase="hpo")["trials"]} == {"hpo"}


def test_a_trial_has_its_curve_and_its_layers(client: TestClient, view: RunView) -> None:
    trial = next(t for t in view.ordered_trials() if len(t.evaluations) > 2)
    detail = _get(client, f"trials/{trial.id}")
    assert detail["trial"]["id"] == trial.id
    assert [p["epoch"] for p in detail["curve"]] == [e.epoch for e in trial.evaluations]
    assert [p["error"] for p in detail["curve"]] == [e.error for e in trial.evaluations]
    counted = count(view.run_graphs.load(trial.started.graph))
    assert sum(layer["forward_operations"] for layer in detail["layers"]) == counted.forward
    assert sum(layer["backward_operations"] for layer in detail["layers"]) == counted.backward
    assert sum(layer["parameters"] for layer in detail["layers"]) == detail["trial"]["parameters"]


def test_trials_are_filtered_by_ranges(client: TestClient) -> None:
    trials = _get(client, "trials")["trials"]
    counts = sorted({each["parameters"] for each in trials})
    low, high = counts[1], counts[-2]
    found = _get(client, "trials", range=[f"parameters:{low}:{high}", "learning_rate:1e-9:"])
    assert 0 < found["total"] < len(trials)
    within = [t["id"] for t in trials if low <= t["parameters"] <= high]
    assert [t["id"] for t in found["trials"]] == within
    qualities = [t["best_quality"] for t in trials if t["best_quality"] is not None]
    best = max(qualities)
    assert _get(client, "trials", range=f"quality:{best}:")["total"] == qualities.count(best)
    assert _get(client, "trials", range="optimizer:0:1")["total"] == 0, "a name is not a number"
    answer = client.get(f"{RUN}/trials", params={"range": ["depth:1:2", "depth:x:"]})
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["where"] == "query.range.1"
    assert error["message"].startswith("should be a hyperparameter, 'parameters', 'depth' or")


@pytest.mark.parametrize(
    "path", ["trials/none", "replicas/none", "replicas/none/output", "files/none", "nothing"]
)
def test_what_a_run_has_not_is_not_found(client: TestClient, path: str) -> None:
    answer = client.get(f"{RUN}/{path}")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


def test_candidates_say_what_became_of_them(client: TestClient, view: RunView) -> None:
    found = _get(client, "candidates")
    assert found["total"] == len(view.history.proposals) > 0
    for each in found["candidates"]:
        assert (each["state"] == "trained") == (each["trial"] is not None)
    trained = _get(client, "candidates", state="trained", replica="r0", limit=1)
    assert [c["replica"] for c in trained["candidates"]] == ["r0"]


def test_the_tree_has_each_trial_below_its_parent(client: TestClient, view: RunView) -> None:
    nodes = _get(client, "tree")["nodes"]
    assert {(n["id"], n["parent"]) for n in nodes} == {
        (t.id, t.started.parent) for t in view.ordered_trials()
    }
    some = _get(client, "tree", limit=1)
    names = {n["id"] for n in some["nodes"]}
    assert some["total"] == len(nodes) > len(names)
    assert all(n["parent"] in (None, *names) for n in some["nodes"])
    (left_out, *_) = {n["id"] for n in nodes} - names
    assert left_out in [n["id"] for n in _get(client, "tree", limit=1, trial=left_out)["nodes"]]


def test_a_curve_of_the_score_ends_at_the_score_and_names_each_improvement(
    client: TestClient, view: RunView
) -> None:
    plain, fine = _get(client, "score"), _get(client, "score", curve=100)
    assert plain["metric"] == _get(client, "status")["metric"]
    assert (plain["curve"], plain["best"]) == ([], [])
    assert 100 <= len(fine["curve"]) < 200
    assert fine["curve"][-1] == fine["score"]
    qualities = [each["quality"] for each in fine["best"]]
    assert qualities == sorted(set(qualities))
    assert (fine["best"][-1]["trial"], qualities[-1]) == (
        view.status().best_trial, view.status().best_quality
    )  # fmt: skip


def test_a_replica_with_its_time(client: TestClient, view: RunView) -> None:
    assert [r["id"] for r in _get(client, "replicas")["replicas"]] == ["r0", "r1"]
    detail = _get(client, "replicas/r1")
    assert detail["seconds"] == view.history.replicas["r1"].seconds
    assert sum(detail["trials_by_state"].values()) == len(view.history.replicas["r1"].trials)


def test_the_end_of_a_replica_s_output(client: TestClient, view: RunView) -> None:
    assert _get(client, "replicas/r0/output") == {"lines": []}, "it printed nothing"
    log = view.paths.replica_log("r1")
    long = MOST_OUTPUT_BYTES * b"x" + b"\n"
    log.write_bytes(long + b"epoch 1\repoch 2\n\x1b[31m<b>red</b>\n\xff\n")
    lines = _get(client, "replicas/r1/output")["lines"]
    assert lines == ["epoch 2", "\\x1b[31m<b>red</b>", "\\xff"]
    assert _get(client, "replicas/r1/output", limit=2)["lines"] == lines[-2:]
    log.unlink()
    log.symlink_to("/etc/passwd")
    answer = client.get(f"{RUN}/replicas/r1/output?limit=3")
    assert (answer.status_code, answer.json()["detail"]) == (
        503, f"cannot read the run: {log}: a link instead of a file"
    )  # fmt: skip


def test_what_was_asked_for_and_what_it_ran_on(client: TestClient, view: RunView) -> None:
    written = yaml.safe_load(view.paths.manifest.read_text("utf-8"))
    told = _get(client, "configuration")["run_yaml"]
    assert told["config"] == written["config"]
    assert _get(client, "machine") == view.machine.summary().model_dump(mode="json")


def test_events_are_numbered_and_told_once(client: TestClient, view: RunView) -> None:
    told = _get(client, "events", limit=10_000)
    numbers = [e["number"] for e in told["events"]]
    assert numbers == list(range(1, told["last"] + 1))
    assert {e["kind"] for e in told["events"]} >= {"run", "replica", "trial", "best"}
    later = _get(client, "events", after=told["last"] - 2)["events"]
    assert later == told["events"][-2:]
    trials = _get(client, "events", kind="trial", component="r0-t001")["events"]
    assert [e["text"].split()[0].rstrip(",:") for e in trials] == ["started", "completed"]
    best = view.history.trials["r0-t001"].best
    assert best is not None
    assert f"completed with {percent(best.error)} error" in trials[1]["text"]

    log = EventLog()
    whole = EventsQuestion(log, EventsQuery(limit=10_000))(view)
    assert EventsQuestion(log, EventsQuery(after=whole.last))(view).events == ()


def test_a_request_to_stop_has_its_time(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    write_manifest(paths, Plan())
    with Primary(paths, Plan()) as primary:
        primary.start()
        primary.write(StopRequested(reason="interrupted by the user"), after=90.0)
        asked = primary.clock.now
    (event,) = [
        each
        for each in EventsQuestion(EventLog(), EventsQuery())(RunView.read(paths)).events
        if each.text == "a stop was requested: interrupted by the user"
    ]
    assert event.utc == asked
    assert event.elapsed_seconds == pytest.approx(90.0)


def test_the_exit_of_a_replica_has_its_time(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    write_manifest(paths, Plan())
    with Primary(paths, Plan()) as primary:
        primary.start()
        primary.write(ReplicaExited(replica="r0", status=9), after=30.0)
    (event,) = [
        each
        for each in EventsQuestion(EventLog(), EventsQuery())(RunView.read(paths)).events
        if each.text == "exited with status 9"
    ]
    assert event.elapsed_seconds == pytest.approx(30.0)


def test_the_files_of_the_report(client: TestClient, view: RunView) -> None:
    names = [f["name"] for f in _get(client, "files")["files"]]
    assert {"run.yaml", "report.html", "report.json"} <= set(names)
    page = client.get(f"{RUN}/files/report.html")
    assert page.content == view.paths.report_html.read_bytes()
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["content-security-policy"].startswith("sandbox")


@pytest.mark.parametrize(
    "name", ["..%2frun.yaml", "%2e%2e/run.yaml", "../run.yaml", "link", "folder", "%00", "a%2f.."]
)
def test_no_path_leads_out_of_the_report(client: TestClient, view: RunView, name: str) -> None:
    link, folder = view.paths.report / "link", view.paths.report / "folder"
    if not link.is_symlink():
        link.symlink_to("/etc/hostname")
        os.mkdir(folder)
    assert client.get(f"{RUN}/files/{name}").status_code == 404
