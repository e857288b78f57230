"""Going on after deaths: of a replica, of the primary, of everything."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil
from tests.end_to_end.conftest import FAST, LONG, TORCH, LiveRun
from tests.support.command import aiperf, aiperf_process
from tests.support.lives import launched_again
from tests.support.processes import alive
from tests.support.waiting import PATIENCE_SECONDS, until

from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.paths import Incarnation, RunPaths
from aiperf_hpc.trial import TrialState

Start = Callable[..., LiveRun]


def past_a_checkpoint(history: RunHistory) -> bool:
    """Each replica has evaluated some epochs of the trial that it is training."""
    training = [t for t in history.trials.values() if t.state is TrialState.TRAINING]
    evaluated = [t for t in training if len(t.evaluations) >= 2]
    return 0 < len(evaluated) == len(training) == len(history.replicas)


def kill_primary(run: LiveRun) -> None:
    run.process.kill()
    run.process.communicate()


def kill_all(run: LiveRun) -> None:
    """As a power cut: the primary first, so that it sees nothing."""
    run.history.refresh()
    kill_primary(run)
    for replica in run.history.replicas:
        os.killpg(run.replica_pid(replica), signal.SIGKILL)


def test_a_killed_replica_is_started_again_and_goes_on(live_run: Start) -> None:
    run = live_run(config=FAST)
    run.wait_until(past_a_checkpoint)
    os.kill(run.replica_pid("r0"), signal.SIGKILL)
    run.wait_until(
        lambda h: any(
            t.replica == "r0" and t.started.resumes is not None and t.evaluations
            for t in h.trials.values()
        )
    )
    ended = run.interrupt()
    assert ended.returncode == 0, ended.stderr
    assert "Score " in ended.stdout
    replica = run.history.replicas["r0"]
    assert list(replica.starts) == [Incarnation(0, 0), Incarnation(0, 1)]
    (second,) = [t for t in run.history.trials.values() if t.started.resumes]
    first = run.history.trials[second.started.resumes or ""]
    assert second.started.first_epoch == second.evaluations[0].epoch
    assert second.started.first_epoch in (len(first.evaluations), len(first.evaluations) + 1)
    assert second.started.graph == first.started.graph
    assert run.history.replicas["r1"].restarts == 0
    assert aiperf("verify", run.paths.root).returncode == 0


def test_a_run_goes_on_after_a_power_cut_and_its_clock_never_stopped(live_run: Start) -> None:
    run = live_run(*LONG, *TORCH)
    run.wait_until(past_a_checkpoint)
    kill_all(run)
    run.resume()
    run.wait_until(lambda h: sum(bool(t.started.resumes) for t in h.trials.values()) == 2)
    run.wait_until(past_a_checkpoint)
    ended = run.interrupt()
    assert ended.returncode == 0, ended.stderr
    assert "Score " in ended.stdout
    history = run.history
    assert len(history.run_starts) == 2
    assert history.start_utc == history.run_starts[0][0]
    assert history.end_utc is not None
    assert launched_again(history)
    verified = aiperf("verify", run.paths.root)
    assert verified.returncode == 0, verified.stdout
    restarts = json.loads(aiperf("report", run.paths.root, "--json").stdout)["restarts"]
    assert [restart["component"] for restart in restarts][0] == "primary"
    assert {restart["component"] for restart in restarts} == {"primary", "r0", "r1"}
    assert all("resumed" in r["description"] for r in restarts if r["component"] != "primary")


def test_a_run_whose_replica_lost_its_folder_is_scored_and_reported(live_run: Start) -> None:
    run = live_run(config=FAST)
    run.wait_until(past_a_checkpoint)
    shutil.rmtree(run.paths.replica("r0"), ignore_errors=True)  # Its replica may write meanwhile.
    run.wait_until(lambda h: bool(h.file_problems))
    ended = run.interrupt()
    assert "Score " in ended.stdout, ended.stderr
    lost = "replicas/r0/0.0/journal.jsonl"
    assert lost in json.dumps(json.loads(run.paths.report_json.read_text("utf-8"))["violations"])
    verified = aiperf("verify", run.paths.root)
    assert verified.returncode == 0, verified.stdout
    assert f"{lost}, line 1: the journal is missing; restore it; it was lost" in verified.stdout
    assert re.search(r"^result: unofficial: .*\brecords\b", verified.stdout, re.MULTILINE)
    assert aiperf("status", run.paths.root).returncode == 0
    assert aiperf("list", run.paths.root.parent).returncode == 0


def service_url(run: LiveRun) -> str:
    """Return where `aiperf status` says that a run is served."""
    said = json.loads(aiperf("status", run.paths.root, "--json").stdout)["service_url"]
    assert isinstance(said, str)
    return said


def url_in_status(url: str) -> object:
    """Return the service's URL in its status, or None if the status predates the restart."""
    with urllib.request.urlopen(  # noqa: S310 -- our own server
        f"{url}/api/v1/status", timeout=PATIENCE_SECONDS
    ) as answer:
        return json.load(answer).get("service_url")


def test_one_of_three_resumes_replaces_the_replicas(live_run: Start, tmp_path: Path) -> None:
    """And the new primary serves the run where the old one did."""
    run = live_run("--nodes", 1, "--serve", "127.0.0.1:0", config=FAST)
    run.wait_until(past_a_checkpoint)
    old = run.replica_pid("r0")
    url = service_url(run)
    kill_primary(run)
    (tmp_path / "link").symlink_to(run.paths.root)
    resumes = [run.resume(folder) for folder in (run.paths.root, run.paths.root, tmp_path / "link")]
    run.process = the_only_one_that_goes_on(resumes)
    run.wait_until(lambda h: all(len(r.starts) == 2 for r in h.replicas.values()))
    assert not alive(old)
    assert service_url(run) == url
    until(lambda: url_in_status(url) == url)
    assert launched_again(run.history)
    run.wait_until(past_a_checkpoint)
    run.interrupt()
    verified = aiperf("verify", run.paths.root)
    assert verified.returncode == 0, verified.stdout


def the_only_one_that_goes_on(resumes: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """Wait until the others have ended, and require that they say who goes on."""

    def going() -> list[subprocess.Popen[str]]:
        return [process for process in resumes if process.poll() is None]

    until(lambda: len(going()) <= 1, lambda: "several go on", pause=0.1)
    (winner,) = going()
    for process in resumes:
        if process is not winner:
            out, err = process.communicate()
            assert (process.returncode, out) == (2, ""), err
            assert f"its primary is running, as process {winner.pid} on " in err
            assert len(err.splitlines()) == 1
    return winner


def test_all_ranks_that_outlived_their_primary_are_ended(live_run: Start) -> None:
    """Rank 0, which the records name, leads a group of its own, but not the session of all."""
    run = live_run("--nodes", 1, "--set", "replica.ranks_per_node=2", config=FAST)
    run.wait_until(lambda h: any(len(t.evaluations) >= 2 for t in h.trials.values()))
    rank_0 = psutil.Process(run.replica_pid("r0"))
    starter = rank_0.parent()
    assert starter is not None
    old = [starter, *starter.children(recursive=True)]
    assert len(old) >= 4  # Two ranks and a search worker.
    kill_primary(run)
    run.resume()
    run.wait_until(lambda h: any(t.started.resumes and t.evaluations for t in h.trials.values()))
    assert not [each for each in old if alive(each.pid)]
    ended = run.interrupt()
    assert ended.returncode == 0, ended.stderr
    assert aiperf("verify", run.paths.root).returncode == 0


def test_stop_ends_a_run_whose_primary_died(live_run: Start) -> None:
    run = live_run("--nodes", 1, config=FAST)
    run.wait_until(past_a_checkpoint)
    kill_primary(run)
    stopped = aiperf_process("stop", run.paths.root)
    assert stopped.returncode == 0, stopped.stderr
    assert "Score " in stopped.stdout
    history = RunHistory.read(run.paths)
    assert history.end_utc is not None
    assert {r.ended for r in history.replicas.values()} == {"stopped by `aiperf stop`"}
    assert aiperf("verify", run.paths.root).returncode == 0


def test_what_cannot_be_resumed_says_why_and_changes_nothing(live_run: Start) -> None:
    run = live_run("--nodes", 1, config=FAST)
    run.wait_until(past_a_checkpoint)
    alive = aiperf("resume", run.paths.root)
    assert alive.returncode == 2
    assert "its primary is running, as process" in alive.stderr
    kill_all(run)
    before = {path: path.stat().st_size for path in run.paths.journals()}
    manifest = run.paths.manifest.read_text()
    for old, new, said in (
        ("momentum: 0.9", "momentum: 0.8", "run.yaml has changed since the run started"),
        ("aiperf-hpc: ", "aiperf-hpc: 9.", "resume it with the version that started it"),
        ("aiperf-hpc files: ", "aiperf-hpc files: 0", "resume it with the version that started"),
    ):
        run.paths.manifest.write_text(manifest.replace(old, new))
        refused = aiperf("resume", run.paths.root)
        assert refused.returncode == 2
        assert said in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    run.paths.manifest.write_text(manifest)
    assert {path: path.stat().st_size for path in run.paths.journals()} == before


def test_a_detached_run_goes_on_without_the_command_that_started_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    started = aiperf_process(
        "start", "--nodes", 1, "--hours", 1, "--config", FAST, "--run-dir", folder, "--yes",
        "--detach", "--launcher", "local", "--serve", 0,
    )  # fmt: skip
    assert started.returncode == 0, started.stderr
    address = started.stdout.split()[-1]
    with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS) as page:  # noqa: S310 -- our own server
        assert page.headers.get_content_type() == "text/html"
    assert f"live page at {address}" in aiperf("status", folder).stdout
    assert f"aiperf status {folder}" in started.stdout
    history = RunHistory.read(RunPaths(folder))
    assert history.run_started is not None
    stopped = aiperf("stop", folder)
    assert stopped.returncode == 0, stopped.stderr
    assert "Score " in stopped.stdout
    assert aiperf("verify", folder).returncode == 0
