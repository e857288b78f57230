"""Runs on a real SLURM cluster: real sbatch, real nodes' daemons, real replicas."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.slurm.conftest import TINY, Cluster, SlurmRun, Start, all_run, gaps, phase
from tests.support.present import present
from tests.support.processes import visible
from tests.support.waiting import until

from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.trial import JobPhase

HOURS = 0.0125
START = ["start", "--config", TINY, "--yes", "--hours", 0.02]


def training(history: RunHistory) -> bool:
    """All replicas have executed samples."""
    seen = {history.trials[e.trial].replica for e in history.executions}
    return len(seen) == len(history.replicas) > 0


def past_a_checkpoint(history: RunHistory, replica: str) -> bool:
    """The replica has evaluated two epochs."""
    trials = (t for t in history.trials.values() if t.replica == replica)
    return any(len(trial.evaluations) >= 2 for trial in trials)


@pytest.fixture(scope="module")
def limited(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmRun]:
    """A run of an hour whose job may last a minute; on one node, beside another test."""
    limit = ["--set", "slurm.extra_directives=['--time=1', '--signal=TERM@10']"]
    folder = tmp_path_factory.mktemp("limited") / "run"
    run = SlurmRun(cluster, folder, "--nodes", 1, "--hours", 1, *limit)
    yield run
    run.close()


def test_a_run_on_three_nodes_has_a_score(cluster: Cluster, slurm_run: Start) -> None:
    run = slurm_run("--nodes", 3, "--hours", HOURS, "--launcher", "slurm")
    run.wait_until(training)
    run.wait_until(all_run)
    status = json.loads(cluster.aiperf("status", run.paths.root, "--json").stdout)
    assert {r["node"] for r in status["replicas"]} == {"n1", "n2", "n3"}
    assert {r["job"] for r in status["replicas"]} == {f"{run.job}_{n}" for n in range(3)}
    lines = cluster.aiperf("status", run.paths.root).stdout.splitlines()
    assert sum(f"job {run.job}_" in line for line in lines) == 3
    assert run.finish() == ""
    history = run.history
    assert history.problems == []
    assert {r.ended for r in history.replicas.values()} == {"the run's time is over"}
    assert {phase(history, r) for r in history.replicas} == {JobPhase.DONE}
    assert history.end_utc is not None
    assert history.start_utc is not None
    assert history.end_utc - history.start_utc >= HOURS * 3600
    names = cluster.programs()
    assert (names.count("sbatch"), names.count("sinfo")) == (1, 1)
    assert min(gaps([at for at, _ in cluster.questions()])) > 4.9
    job = cluster.run("squeue", "-h", "-t", "all", "-j", run.job, "-o", "%T").stdout.split()
    assert set(job) <= {"COMPLETED", "COMPLETING"}  # SLURM agrees about how it ended.


@pytest.mark.usefixtures("limited")  # It needs a minute, and this test leaves it a node.
def test_scancel_requeue_and_stop(cluster: Cluster, slurm_run: Start) -> None:
    run = slurm_run("--nodes", 2, "--hours", 1, "--launcher", "slurm")
    run.wait_until(lambda h: training(h) and past_a_checkpoint(h, "r0"))
    assert cluster.run("scancel", f"{run.job}_1").returncode == 0
    assert cluster.run("scontrol", "requeue", f"{run.job}_0").returncode == 0
    run.wait_until(lambda h: phase(h, "r1") is JobPhase.FAILED)
    # That it waited in between is seen only if a look, 5 s apart or more, falls into it.
    run.wait_until(lambda h: h.replicas["r0"].restarts == 1)
    run.wait_until(lambda h: phase(h, "r0") is JobPhase.RUNNING)
    second = max(run.history.replicas["r0"].starts.values())
    run.wait_until(lambda h: any(e.utc > second for e in h.executions))
    run.stop()
    _, err = run.end()
    assert "CANCELLED" in err
    history = run.history
    assert history.replicas["r0"].ended == "stopped by `aiperf stop`"
    assert phase(history, "r0") is JobPhase.DONE
    cut, again = [t for t in history.trials.values() if t.replica == "r0"][:2]
    assert cut.ended is None
    assert cut.reason == "its replica ended: SIGTERM"
    assert again.started.resumes == cut.id
    # Not one complete epoch is lost: a checkpoint follows each of them here.
    assert again.started.first_epoch == len(cut.evaluations) + 1
    run.verify()


def test_before_the_time_limit_replicas_end_in_order(cluster: Cluster, limited: SlurmRun) -> None:
    run = limited
    run.finish()
    assert run.history.replicas["r0"].ended == "SIGTERM"
    assert all(trial.state.ended for trial in run.history.trials.values())
    run_ended = present(run.history.run_ended)
    assert getattr(run_ended.event, "reason", "") == "SIGTERM"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nodes", 4], "--nodes 4: partition 'bench' has 3 nodes that can be used, of 3"),
        (["--nodes", 1, "--set", "slurm.gres=gpu:8"], "slurm.gres gpu:8: 0 nodes"),
        (["--nodes", 1, "--set", "slurm.partition=short"], "partition 'short' allows 5"),
    ],
)
def test_missing_resources(
    cluster: Cluster, tmp_path: Path, arguments: list[object], said: str
) -> None:
    assert said in cluster.refusal(*START, *arguments, "--run-dir", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("launcher", ["array", "allocation"])
def test_what_slurm_itself_refuses_comes_in_its_words(
    cluster: Cluster, tmp_path: Path, launcher: str
) -> None:
    wrong = ["--set", "slurm.constraint=nosuchfeature"]
    run = ["--launcher", launcher, "--run-dir", tmp_path / "run"]
    line = cluster.refusal(*START, "--nodes", 1, *wrong, *run)
    assert "Invalid feature specification" in line
    assert "nothing was started" in line
    status = json.loads(cluster.aiperf("status", tmp_path / "run", "--json").stdout)
    assert status["state"] == "ended"
    assert status["reason"].startswith("not started: SLURM refused the job")
    assert cluster.run("squeue", "-h").stdout.strip() == ""


def test_a_dry_run_prints_the_script_and_auto_takes_slurm(cluster: Cluster, tmp_path: Path) -> None:
    done = cluster.aiperf(*START, "--nodes", 3, "--dry-run", "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --array=0-2\n" in done.stdout
    assert not (tmp_path / "run").exists()
    script = tmp_path / "script.sh"
    script.write_text(done.stdout)
    tested = cluster.run("sbatch", "--test-only", script)
    assert tested.returncode == 0, tested.stderr  # SLURM reads it as it is meant.


def test_a_client_without_a_controller(cluster: Cluster, tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    text = (cluster.folder / "slurm.conf").read_text()
    conf.write_text(text.replace("SlurmctldPort=", "SlurmctldPort=1 #"))
    away = Cluster(cluster.folder, SLURM_CONF=str(conf))
    line = away.refusal(*START, "--nodes", 4096, "--run-dir", tmp_path / "run")
    assert "SLURM does not respond" in line
    assert "Unable to contact slurm controller" in line
    assert not (tmp_path / "run").exists()


def test_a_cluster_leaves_no_process() -> None:
    with tempfile.TemporaryDirectory(prefix="aiperf-slurm-") as name:
        small = Cluster(Path(name))
        started = small.control("start", "--nodes", 2)
        assert started.returncode == 0, started.stderr
        assert started.stdout == small.control("env").stdout
        work = ["--output=/dev/null", "--wrap", "sleep 600 & srun sleep 601"]
        job = small.run("sbatch", "--parsable", *work).stdout.strip()
        state = ("squeue", "-h", "-o", "%T", "-j", job)
        until(lambda: "RUNNING" in small.run(*state).stdout, pause=0.2)
        time.sleep(1.0)  # For the step, too, to be there.
        assert small.control("start").returncode == 1  # One cluster a folder.
        assert small.control("stop").returncode == 0
        own = name.encode()
        assert [c for _, c, environment in visible() if c and own in environment] == []


def test_local_cluster_says_what_is_missing(cluster: Cluster) -> None:
    done = Cluster(cluster.folder / "no").control("start", "--nodes", 0)
    assert done.returncode == 1
    assert done.stderr == "local-cluster: --nodes 0: a cluster has at least 1 node\n"
