"""The queue of a folder, and what is started, stopped and resumed from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from tests.browser.live_run import LiveRun
from tests.service.conftest import SHOWN, TOKEN
from tests.service.fake_primaries import FakePrimaries, Played
from tests.service.serving import serving_queue
from tests.support.run_factory import DATASET, Plan, write_manifest, write_run
from tests.support.waiting import until

from aiperf_hpc.config import load_config
from aiperf_hpc.errors import RunDirectoryError, UsageError
from aiperf_hpc.results.views.cached_view import CachedView
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.requests import ScaleRequest
from aiperf_hpc.service.access import Policy
from aiperf_hpc.service.app import create_app
from aiperf_hpc.service.endpoint import Tokens
from aiperf_hpc.service.problem import Problem
from aiperf_hpc.service.run_queue import Primaries, RunQueue, owned
from aiperf_hpc.service.runs import FolderOfRuns, OneRun
from aiperf_hpc.service.submission import Submission

SMALL = Plan(replicas=1, trials=1, hpo_trials=0)
RUN = {"nodes": 1, "hours": 0.05}


@pytest.fixture
def primaries() -> FakePrimaries:
    return FakePrimaries()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiperf_hpc.service.run_queue.LOOK_SECONDS", 0.01)
    monkeypatch.setattr("aiperf_hpc.service.runs.LOOK_SECONDS", 0.0)


def _state(client: TestClient, name: str) -> str:
    return str(client.get(f"/api/v1/queue/{name}").json()["state"])


def test_runs_are_started_one_at_a_time(tmp_path: Path, primaries: FakePrimaries) -> None:
    log: list[str] = []
    with serving_queue(tmp_path, primaries, log.append) as client:
        for name in ("first", "second"):
            answer = client.post("/api/v1/runs", json={**RUN, "name": name})
            assert answer.status_code == 202, answer.text
        assert answer.json()["id"] == "000002"
        until(lambda: _state(client, "000001") == "started")
        until(lambda: client.get("/api/v1/queue/000002").json()["reason"] == "run first goes on")
        assert [e["id"] for e in client.get("/api/v1/queue").json()["queue"]] == [
            "000002",
            "000001",
        ]
        assert list(primaries.started) == ["first"]
        primaries.started["first"].status = 0
        until(lambda: _state(client, "000002") == "started")
        assert {"first", "second"} == {r["name"] for r in client.get("/api/v1/runs").json()["runs"]}
    assert "queue: submission 000002 has started as second" in log
    assert (
        load_config("quickstart").settled() == RunManifest.load(RunPaths(tmp_path / "first")).config
    )


def test_slurm_is_handed_its_runs_at_once(tmp_path: Path, primaries: FakePrimaries) -> None:
    primaries.other = "process 1 computes on this machine, for another run"
    with serving_queue(tmp_path, primaries) as client:
        for name, launcher in (("here", "local"), ("there", "slurm")):
            client.post("/api/v1/runs", json={**RUN, "name": name, "launcher": launcher})
        until(lambda: _state(client, "000002") == "started")
        waits = client.get("/api/v1/queue/000001").json()
    assert (waits["state"], waits["reason"]) == ("queued", primaries.other)


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"nodes": 0}, 422, "body.nodes"),
        ({"hours": "NaN"}, 422, "body.hours"),
        ({"name": "../out"}, 422, "body.name"),
        ({"name": ".hidden"}, 422, "body.name"),
        ({"extra": 1}, 422, "body.extra"),
        ({"preset": "imagnet"}, 422, "did you mean 'imagenet'?"),
        ({"preset": "../../etc/passwd"}, 422, "no preset"),
        ({"settings": {"training": {"batch_sise": 1}}}, 422, "did you mean 'training.batch_size'?"),
        ({"settings": {"training": 7}}, 422, "training"),
        ({"preset": "cifar10"}, 422, "this cannot run: no CIFAR-10 at /data"),
        ({"name": "taken"}, 409, "a run or submission 'taken' exists already"),
    ],
)
def test_what_cannot_run_is_refused_in_one_clear_line(
    tmp_path: Path, primaries: FakePrimaries, change: dict[str, object], status: int, words: str
) -> None:
    (tmp_path / "taken").mkdir()
    with serving_queue(tmp_path, primaries) as client:
        answer = client.post("/api/v1/runs", json={**RUN, **change})
        assert client.get("/api/v1/queue").json()["queue"] == []
    assert answer.status_code == status, answer.text
    detail = Problem.model_validate(answer.json()).detail
    assert words in detail
    assert "\n" not in detail


def test_an_error_of_a_setting_names_the_field(tmp_path: Path, primaries: FakePrimaries) -> None:
    settings = {"training": {"batch_size": 0}, "search": {"nope": 1}}
    with serving_queue(tmp_path, primaries) as client:
        refused = client.post("/api/v1/runs", json={**RUN, "settings": settings})
        presets = client.get("/api/v1/presets").json()
    assert {each["where"] for each in refused.json()["errors"]} == {
        "body.settings.training.batch_size", "body.settings.search.nope"
    }  # fmt: skip
    (quick,) = [each for each in presets["presets"] if each["name"] == "quickstart"]
    assert quick["configuration"] == load_config("quickstart").model_dump(mode="json")
    assert presets["configuration_schema"]["properties"].keys() == quick["configuration"].keys()


def test_invalid_bodies_are_refused(tmp_path: Path, primaries: FakePrimaries) -> None:
    with serving_queue(tmp_path, primaries) as client:
        assert client.post("/api/v1/runs", content=b"x" * 1_000_001).status_code == 413
        assert client.post("/api/v1/runs", content=b"{").status_code == 422
        deep = b"[" * 100_000
        assert client.post("/api/v1/runs", content=deep).status_code in (400, 422)
        lone = b'{"nodes": 1, "hours": 1, "settings": {"\\ud800": 1}}'
        assert client.post("/api/v1/runs", content=lone).status_code == 422


def test_a_waiting_submission_is_cancelled(tmp_path: Path, primaries: FakePrimaries) -> None:
    primaries.other = "process 1 computes on this machine, for another run"
    with serving_queue(tmp_path, primaries) as client:
        name = client.post("/api/v1/runs", json=RUN).json()["id"]
        assert client.post(f"/api/v1/queue/{name}/cancel").json()["state"] == "cancelled"
        assert client.post(f"/api/v1/queue/{name}/cancel").status_code == 409
        assert client.post("/api/v1/queue/none/cancel").status_code == 404
    assert (tmp_path / ".aiperf-service" / "queue" / "000001.json").exists(), "nothing is deleted"


def test_a_failed_start_lets_the_next_run_start(tmp_path: Path, primaries: FakePrimaries) -> None:
    primaries.other = "process 1 computes on this machine, for another run"
    with serving_queue(tmp_path, primaries) as client:
        for name in ("first", "second"):
            client.post("/api/v1/runs", json={**RUN, "name": name})
        (tmp_path / "first").mkdir()
        (tmp_path / "first" / "foreign").touch()
        primaries.other = None
        until(lambda: _state(client, "000002") == "started")
        failed = client.get("/api/v1/queue/000001").json()
    assert failed["state"] == "failed"
    assert "is not empty" in failed["reason"]


def test_a_primary_that_ends_at_once_is_said(tmp_path: Path, primaries: FakePrimaries) -> None:
    log: list[str] = []
    with serving_queue(tmp_path, primaries, log.append) as client:
        client.post("/api/v1/runs", json={**RUN, "name": "first"})
        until(lambda: _state(client, "000001") == "started")
        output = RunPaths(tmp_path / "first").primary_log
        output.parent.mkdir(exist_ok=True)
        output.write_text("something\naiperf: no port is free\n")
        primaries.started["first"].status = 2
        until(lambda: _state(client, "000001") == "failed")
        reason = client.get("/api/v1/queue/000001").json()["reason"]
    assert reason == "its primary ended with status 2: no port is free"
    assert f"queue: run first: {reason}" in log


def test_a_restarted_service_resumes_the_queue(tmp_path: Path, primaries: FakePrimaries) -> None:
    primaries.other = "process 1 computes on this machine, for another run"
    with serving_queue(tmp_path, primaries) as client:
        client.post("/api/v1/runs", json={**RUN, "name": "first"})
        client.post("/api/v1/runs", json={**RUN, "name": "second"})
    entry = tmp_path / ".aiperf-service" / "queue" / "000001.json"
    entry.write_text(json.dumps({**json.loads(entry.read_text()), "state": "starting"}))
    again = FakePrimaries()
    with serving_queue(tmp_path, again) as client:
        until(lambda: _state(client, "000002") == "started")
        assert _state(client, "000001") == "failed"
        assert client.post("/api/v1/runs", json=RUN).json()["id"] == "000003"


def test_one_service_at_a_time_changes_a_folder(tmp_path: Path) -> None:
    taken = r"is served already, by process \d+ on .* since 20"
    with owned(tmp_path), pytest.raises(UsageError, match=taken), owned(tmp_path):
        pass
    with owned(tmp_path):
        pass


def test_a_folder_that_cannot_be_written_is_only_read(unprivileged: Path) -> None:
    unprivileged.chmod(0o555)
    only_read = "without --token-file it is read-only"
    with pytest.raises(RunDirectoryError, match=only_read), owned(unprivileged):
        pass
    unprivileged.chmod(0o755)


def test_a_damaged_file_of_the_queue_is_said(tmp_path: Path) -> None:
    (tmp_path / ".aiperf-service" / "queue").mkdir(parents=True)
    (tmp_path / ".aiperf-service" / "queue" / "000001.json").write_text("{")
    working = RunQueue(tmp_path, FakePrimaries()).working()
    with pytest.raises(RunDirectoryError, match="000001.json is damaged; removing it"), working:
        pass


def test_stop_requests(
    tmp_path: Path, primaries: FakePrimaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []
    monkeypatch.setattr(
        "aiperf_hpc.service.run_queue.start_command",
        lambda command, paths: commands.append(command) or Played(),  # type: ignore[func-returns-value]
    )
    write_run(tmp_path / "ended", SMALL)
    lost = write_run(tmp_path / "lost", Plan(replicas=1, trials=1, hpo_trials=0, ended=False))
    write_manifest(RunPaths(tmp_path / "never"), SMALL)
    with serving_queue(tmp_path, primaries) as client:
        for name, words in (("ended", "has ended already"), ("never", "never started")):
            refused = client.post(f"/api/v1/runs/{name}/stop")
            assert refused.status_code == 409
            assert words in refused.json()["detail"]
        assert client.post("/api/v1/runs/none/stop").status_code == 404
        assert not lost.stop_request.exists()
        accepted = client.post("/api/v1/runs/lost/stop")
        assert accepted.status_code == 202
        assert client.get(accepted.json()["status"]).status_code == 200
    assert lost.stop_request.read_text() == "stopped by the service\n"
    assert commands == ["stop"], "its primary is gone: somebody else gives it its end"


def test_a_run_that_is_served_alone_can_be_stopped_and_nothing_else(tmp_path: Path) -> None:
    with LiveRun(tmp_path / "run", replicas=1) as live:
        view = CachedView(RunView(live.paths))
        app = create_app(OneRun("run", view), Policy(Tokens([TOKEN])))
        with TestClient(app, base_url="http://127.0.0.1") as client:
            assert client.get("/api/v1").json()["changes"] == ["stop", "scale"]
            assert client.post("/api/v1/runs/run/stop").status_code == 401
            assert not live.paths.stop_request.exists()
            assert client.post("/api/v1/runs/other/stop", headers=SHOWN).status_code == 404
            assert client.post("/api/v1/runs", headers=SHOWN, json=RUN).status_code == 405
            wanted = {"nodes": 1}
            scaled = client.post("/api/v1/runs/run/scale", headers=SHOWN, json=wanted)
            assert scaled.status_code == 202
            assert ScaleRequest.load(live.paths) == ScaleRequest(nodes=1, reason="the service")
            assert client.post("/api/v1/runs/run/scale", json=wanted).status_code == 401
            nothing = {"nodes": 0}
            refused = client.post("/api/v1/runs/run/scale", headers=SHOWN, json=nothing)
            assert refused.status_code == 422
            assert client.post("/api/v1/runs/run/stop", headers=SHOWN).status_code == 202
            assert live.paths.stop_request.exists()
            live.primary.end()
            assert client.post("/api/v1/runs/run/stop", headers=SHOWN).status_code == 409
            late = client.post("/api/v1/runs/run/scale", headers=SHOWN, json=wanted)
            assert late.status_code == 409
            assert "its nodes cannot change" in late.json()["detail"]


def test_a_service_says_what_it_changes(tmp_path: Path, primaries: FakePrimaries) -> None:
    with serving_queue(tmp_path, primaries) as client:
        assert client.get("/api/v1").json()["changes"] == ["submit", "stop", "scale", "resume"]
    with TestClient(create_app(FolderOfRuns(tmp_path)), base_url="http://127.0.0.1") as client:
        assert client.get("/api/v1").json()["changes"] == []


def test_resuming_on_a_busy_machine(tmp_path: Path, primaries: FakePrimaries) -> None:
    write_run(tmp_path / "lost", Plan(replicas=1, trials=1, hpo_trials=0, ended=False))
    with serving_queue(tmp_path, primaries) as client:
        assert client.post("/api/v1/runs/lost/resume").status_code == 202
        again = client.post("/api/v1/runs/lost/resume")
        assert (again.status_code, again.json()["detail"]) == (
            409, "one run at a time: run lost goes on",
        )  # fmt: skip
    assert primaries.commands == [("resume", "lost")]


def test_a_run_that_has_ended_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Primaries, "busy", lambda _: None)  # Others may test runs on this machine.
    write_run(tmp_path / "ended", SMALL)
    with serving_queue(tmp_path, Primaries()) as client:
        refused = client.post("/api/v1/runs/ended/resume")
    assert (refused.status_code, "has ended" in refused.json()["detail"]) == (409, True)


def test_the_plan_of_a_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    where = "aiperf_hpc.service.run_queue"
    described = DATASET.model_copy(update={"sha256": "d" * 64})
    monkeypatch.setattr(f"{where}.describe_dataset", lambda config: described)
    settings = {"training": {"batch_size": 48}}
    plan = Primaries().plan(Submission(nodes=1, hours=0.1, settings=settings, launcher="local"))
    assert (plan.launcher, plan.dataset) == ("local", described)
    assert plan.config == load_config("quickstart", ["training.batch_size=48"]).settled()
    with pytest.raises(UsageError, match="a replica spans 2 nodes"):
        Primaries().plan(Submission(nodes=1, hours=0.1, settings={"replica": {"nodes": 2}}))
    with pytest.raises(UsageError, match="cannot be official in the open division:\n  settings: "):
        Primaries().plan(Submission(nodes=1, hours=1.0, division="open", launcher="local"))


def test_nothing_computes_here_but_for_replicas() -> None:
    class Process:
        pid = 7

        def __init__(self, words: list[str]) -> None:
            self.info = {"cmdline": words}

    with pytest.MonkeyPatch.context() as patch:
        processes = [Process(["vi", "notes"])]
        patch.setattr("psutil.process_iter", lambda _: iter(processes))
        assert Primaries().busy() is None
        processes.append(Process(["python", "-m", "aiperf_hpc.replica", "/run", "r0"]))
        assert Primaries().busy() == "process 7 computes on this machine, for another run"


@pytest.mark.parametrize("change", ["resume", "stop", "scale"])
def test_a_run_that_cannot_be_read_is_no_conflict(
    tmp_path: Path, primaries: FakePrimaries, change: str
) -> None:
    paths = write_run(tmp_path / "run", SMALL)
    with serving_queue(tmp_path, primaries) as client:
        client.get("/api/v1/runs")
        paths.manifest.write_text("[")
        answer = client.post(f"/api/v1/runs/run/{change}", json={"nodes": 1})
    assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)
