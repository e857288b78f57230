"""Whole simulated runs: the real code of both sides, on a virtual clock."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from tests.support.command import AIPERF, aiperf, aiperf_process
from tests.support.present import present
from tests.support.processes import in_a_group
from tests.support.refusals import refused_line
from tests.support.rules import failures_by_rule, verify
from tests.support.run_manifest import run_manifest
from tests.support.simulation import simulated_run
from tests.support.waiting import PATIENCE_SECONDS, until

from aiperf_hpc.cli import main
from aiperf_hpc.config import load_config
from aiperf_hpc.errors import UsageError
from aiperf_hpc.results.views.run_view import RunState, RunView
from aiperf_hpc.run import records
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.simulation.cluster import FileServer
from aiperf_hpc.simulation.main import START_UTC, simulate
from aiperf_hpc.simulation.timeline import Timeline

HOURS = 0.35


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    folder = tmp_path_factory.mktemp("simulation") / "run"
    return simulated_run(folder, nodes=16, hours=HOURS, rules=1)


def test_sixteen_replicas_pass_verification(view: RunView) -> None:
    findings = verify(RunView(view.paths))
    assert [f.rule for f in findings if not f.passed] == []
    # A simulated network has nothing that could be kept; its node has no clocks, describes
    # itself to nobody and draws nothing, and digests are recorded of what took place alone.
    unseen = {f.rule for f in findings if not f.checked}
    assert unseen == {
        "timekeeping", "clock", "digests", "rates", "machines", "energy", "predictions",
        "best epochs", "baseline", "signature", "study", "witness",
    }  # fmt: skip


def test_the_run_has_all_that_a_real_one_has(view: RunView) -> None:
    history = view.history
    assert len(history.replicas) == 16
    assert {r.ended for r in history.replicas.values()} == {"the run's time is over"}
    trials = history.trials.values()
    assert {str(t.started.phase) for t in trials} == {"warm-up", "hpo"}
    parents = [(t.replica, history.trials[t.started.parent].replica) for t in trials
               if t.started.parent is not None]  # fmt: skip
    assert any(replica != parent for replica, parent in parents)
    assert len({t.started.graph for t in trials}) > 16
    status = view.status(view.until)
    assert status.state is RunState.ENDED
    violations = list(map(str, status.violations))
    assert "engine: simulated engine: nothing was computed" in violations


def test_its_status_goes_by_its_own_clock_and_says_that_it_is_simulated(
    view: RunView, capsys: pytest.CaptureFixture[str]
) -> None:
    status = view.status()
    assert status.simulated
    assert status.elapsed_seconds == view.final().elapsed_seconds
    assert {r.last_record_seconds for r in status.replicas} == {None}
    assert main(["status", str(view.paths.root)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("run: ended (the run's time is over), simulated\n")
    assert " ago" not in said


def test_while_it_lasts_it_is_as_old_as_its_last_record(view: RunView, tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run")
    shutil.copytree(view.paths.root, paths.root)
    lines = paths.primary_journal.read_bytes().splitlines(keepends=True)
    paths.primary_journal.write_bytes(b"".join(lines[: len(lines) // 2]))
    (journal,) = paths.replica("r0").glob("*/journal.jsonl")
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))
    during = RunView.read(paths)
    status = during.status()
    assert status.state is RunState.RUNNING  # Its file was written just now.
    assert status.elapsed_seconds <= HOURS * 3600 + 15
    (first,) = (r for r in status.replicas if r.id == "r0")
    assert present(first.last_record_seconds) < 60.0
    assert all(trial.seconds < HOURS * 3600 + 15 for trial in during.trials())
    os.utime(paths.primary_journal, (1.0, 1.0))
    assert during.status().state is RunState.SILENT


def test_it_lasts_as_long_as_asked_for_on_its_own_clock(view: RunView) -> None:
    assert view.history.start_utc == START_UTC
    seconds = view.final().elapsed_seconds
    assert HOURS * 3600 <= seconds < HOURS * 3600 + 15
    model = view.manifest.config.engine.simulation
    assert 0.9 < view.final().ops / (16 * model.operations_per_second) < 1.0


def content(root: Path) -> dict[str, bytes]:
    files = sorted(root.rglob("*"))
    return {str(f.relative_to(root)): f.read_bytes() for f in files if f.is_file()}


def test_the_same_seed_gives_the_same_bytes_and_another_seed_another_run(tmp_path: Path) -> None:
    first, again, other = (
        simulated_run(tmp_path / name, f"seed={seed}", nodes=4, hours=HOURS)
        for name, seed in (("first", 0), ("again", 0), ("other", 1))
    )
    assert content(again.paths.root) == content(first.paths.root)
    assert set(other.history.graphs) != set(first.history.graphs)


def test_writes_take_longer_when_the_file_server_is_slow(view: RunView, tmp_path: Path) -> None:
    rate = "engine.simulation.syncs_per_second=2"
    slow = simulated_run(tmp_path / "slow", rate, nodes=16, hours=HOURS, rules=1)
    assert slow.final().ops < 0.98 * view.final().ops
    assert failures_by_rule(slow.paths) == {}


def test_a_stop_request_stops_it(tmp_path: Path) -> None:
    def ask(_: object) -> None:
        RunPaths(tmp_path / "run").stop_request.write_text("enough\n")

    view = simulated_run(tmp_path / "run", show=ask, nodes=3, hours=1.0)
    assert view.final().elapsed_seconds < 120.0
    assert present(view.history.run_ended).event == records.RunEnded(reason="enough")


def test_a_real_engine_is_not_simulated(tmp_path: Path) -> None:
    manifest = run_manifest(load_config("quickstart"), launcher="simulated")
    with pytest.raises(UsageError, match=r"tensorflow.*engine\.name=simulated"):
        simulate(manifest, RunPaths(tmp_path))


def test_the_command_simulates_reports_and_says_that_it_is_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    asked = ("--nodes", 2, "--hours", 0.2, "--set", "seed=3")
    wide = {**os.environ, "COLUMNS": "1000"}
    done = aiperf_process("simulate", folder, *asked, environment=wide)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("Score ")
    (verdict,) = (line for line in lines if line.startswith("Result "))
    assert "  INVALID: simulated engine: nothing was computed; " in verdict
    assert f"`aiperf report {folder}` lists the reasons" in verdict
    assert json.loads((folder / "report/report.json").read_text())["nodes_requested"] == 2
    assert aiperf("verify", folder).returncode == 0
    monkeypatch.chdir(tmp_path)
    lines = aiperf("report", "run", environment={"COLUMNS": "80"}).stdout.splitlines()
    assert lines[-1].startswith("Score ")
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    said = " ".join(aiperf("status", folder).stdout.split())
    assert "INVALID: simulated engine: nothing was computed" in said
    assert RunHistory.read(RunPaths(folder)).last_start.launcher == "simulated"


def test_ctrl_c_ends_a_simulation_in_order(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run")
    with in_a_group(*AIPERF, "simulate", paths.root, "--nodes", 16, "--hours", 1000) as process:
        journals = "replicas/*/0.0/journal.jsonl"
        until(lambda: list(paths.root.glob(journals)), pause=0.1, of=process)
        os.killpg(process.pid, signal.SIGINT)  # As a terminal does: to all that belong to it.
        said, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    assert "\nReport" in said
    history = RunHistory.read(paths)
    assert history.stop_requests[-1][1].reason == "interrupted by the user"
    assert {replica.ended for replica in history.replicas.values()} == {"interrupted by the user"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "0", "--hours", "1"], "--nodes 0: a run needs at least 1 node"),
        (["--nodes", "1", "--hours", "1", "--config", "quickstart"], "engine.name=simulated"),
        (["--nodes", "1", "--hours", "1", "--set", "engine.simulation.noise=2"], "noise"),
    ],
)
def test_what_cannot_be_simulated_is_said_in_one_line(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    assert message in refused_line("simulate", tmp_path / "run", *arguments)
    assert not (tmp_path / "run").exists()


def test_the_benchmark_of_scaling_makes_runs_a_report_and_figures(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "scaling.py"
    command = [sys.executable, str(script), "--to", "4", "--hours", "0.05"]
    command += ["--folder", str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    one, four = _rows(done.stdout)
    assert (one["nodes"], four["nodes"]) == ("1", "4")
    efficiency = float(four["efficiency"])
    assert efficiency == pytest.approx(float(four["OPS"]) / 4 / float(one["OPS"]), rel=1e-3)
    assert 0.8 < efficiency < 1.2
    assert four["processor s"]
    assert 'id="scaling"' in (tmp_path / "n4/report/report.html").read_text()
    again = subprocess.run(command, check=True, capture_output=True, text=True)
    assert [row["processor s"] for row in _rows(again.stdout)] == ["", ""]


def _rows(table: str) -> list[dict[str, str]]:
    """Return the rows of a Markdown table by their headings."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    names, _, *rows = [line for line in lines if line]
    return [dict(zip(names, row, strict=True)) for row in rows]


def test_writes_queue_at_the_file_server_and_who_is_ahead_delays_nobody() -> None:
    timeline = Timeline(0.0)
    server = FileServer(timeline, latency=0.5, per_second=10.0)
    took: list[float] = []

    def write(spent: float) -> None:
        timeline.spend(spent)
        before = timeline.monotonic()
        server.sync(0)
        took.append(timeline.monotonic() - before)

    def main() -> None:
        tasks = [timeline.spawn(partial(write, spent)) for spent in (100.0, 0.0, 0.0)]
        for task in tasks:
            timeline.join(task)
        timeline.sleep(1.0)
        write(0.0)

    timeline.run(main)
    assert took == pytest.approx([0.6, 0.7, 0.8, 0.6])
