"""Faults on a real cluster: the run continues, and no record is lost or counted twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.slurm.conftest import Cluster, SlurmRun, Start, all_run, gaps, job_state, phase
from tests.support.lives import launched_again
from tests.support.present import present
from tests.support.processes import MAY_HAVE_ENDED, alive, visible
from tests.support.waiting import until

from aiperf_hpc.deploy.local_cluster import (
    cut_link,
    heal_link,
    pid_of,
    start_slurmctld,
    start_slurmd,
)
from aiperf_hpc.run import records
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.run.paths import FIRST, Incarnation
from aiperf_hpc.trial import JobPhase, TimePhase

AGAIN = Incarnation(0, 1)
STOPPED = "stopped by `aiperf stop`"


def all_train(history: RunHistory) -> bool:
    """All replicas have evaluated two epochs, so that there are checkpoints."""
    trials = [t for t in history.trials.values() if len(t.evaluations) >= 2]
    trained = {t.replica for t in trials if t.incarnation == FIRST}
    return bool(trained) and history.replicas.keys() == trained


def resumed(history: RunHistory, replica: str, life: Incarnation) -> bool:
    """A life of a replica goes on with the trial of an earlier one, and has evaluated epochs."""
    return any(
        (t.replica, t.incarnation) == (replica, life) and t.started.resumes and t.evaluations
        for t in history.trials.values()
    )


def stop_and_verify(run: SlurmRun) -> RunHistory:
    """Stop a run; require that its records prove its score, and that it ended in order."""
    run.stop()
    run.finish()
    assert run.history.problems == []
    assert {r.ended for r in run.history.replicas.values()} == {STOPPED}
    return run.history


def one_call_every_five_seconds(run: SlurmRun) -> bool:
    """Whether that holds from the first call to the last, of this run's primaries."""
    return min(gaps([at for at, _ in run.cluster.questions()]), default=5.0) > 4.9


def pid(history: RunHistory, replica: str) -> int:
    started = present(history.replicas[replica].started)
    return started.pid


def test_a_killed_replica_which_slurm_takes_for_failed_is_started_again(slurm_run: Start) -> None:
    run = slurm_run("--nodes", 2, "--hours", 1)
    run.wait_until(all_train)
    os.kill(pid(run.history, "r0"), signal.SIGKILL)
    run.wait_until(lambda h: phase(h, "r0") is JobPhase.REQUEUED)
    detail = job_state(run.history, "r0").detail
    assert "signal 9" in detail
    assert "requeued, 1 of 3" in detail
    run.wait_until(lambda h: resumed(h, "r0", AGAIN))
    history = stop_and_verify(run)
    assert (history.replicas["r0"].restarts, history.replicas["r1"].restarts) == (1, 0)
    assert run.cluster.programs().count("scontrol") == 1
    assert one_call_every_five_seconds(run)


def test_a_killed_primary_is_replaced_by_another(slurm_run: Start) -> None:
    run = slurm_run("--nodes", 1, "--hours", 1)
    run.wait_until(all_train)
    job = run.job
    run.kill_primary()
    run.resume()
    run.wait_until(launched_again)
    run.wait_until(lambda h: all(resumed(h, name, max(r.starts)) for name, r in h.replicas.items()))
    assert run.job != job
    listed = run.cluster.run("squeue", "-h", "-t", "R,PD", "-j", job).stdout
    assert listed.strip() == ""
    history = stop_and_verify(run)
    assert len(history.run_starts) == 2
    assert run.cluster.programs().count("sbatch") == 2


def test_a_killed_daemon_whose_steps_die_with_it(cluster: Cluster, slurm_run: Start) -> None:
    """Steps that go on are those behind a cut link."""
    run = slurm_run("--nodes", 1, "--hours", 1)
    run.wait_until(all_train)
    run.wait_until(all_run)
    node = present(job_state(run.history, "r0").node)
    old = pid(run.history, "r0")
    os.kill(pid_of(cluster.folder, node), signal.SIGKILL)
    kill_job(cluster, run.history, "r0")
    try:
        run.wait_until(lambda h: resumed(h, "r0", AGAIN))
        assert not alive(old)
    finally:
        start_slurmd(cluster.folder, node)
    history = stop_and_verify(run)
    assert history.replicas["r0"].restarts == 1
    assert history.fenced == 0
    _idle(cluster, 3)


def kill_job(cluster: Cluster, history: RunHistory, replica: str) -> None:
    """Kill all that belongs to a replica's job, and what SLURM has put above it."""
    started = present(history.replicas[replica].started)
    _kill_within(cluster, f"slurmstepd: [{started.job}.", f"SLURM_JOB_ID={started.job}")


def kill_step(cluster: Cluster, pid: int) -> None:
    """Kill all that belongs to the step of a job that a process is in, and what is above it."""
    environment = dict(
        pair.split("=", 1)
        for pair in Path(f"/proc/{pid}/environ").read_text("utf-8").split("\0")
        if "=" in pair
    )
    job, step = environment["SLURM_JOB_ID"], environment["SLURM_STEP_ID"]
    variables = (f"SLURM_JOB_ID={job}", f"SLURM_STEP_ID={step}")
    _kill_within(cluster, f"slurmstepd: [{job}.{step}", *variables)


def _kill_within(cluster: Cluster, daemon: str, *variables: str) -> None:
    """Kill a cluster's processes that have all variables, and its daemons of a name.

    Clusters beside each other give their jobs the same numbers.
    """
    own = f"SLURM_CONF={cluster.environment['SLURM_CONF']}".encode()
    wanted = {variable.encode() for variable in variables}
    for number, command, content in visible():
        environment = set(content.split(b"\0"))
        if own in environment and (wanted <= environment or command.startswith(daemon.encode())):
            with MAY_HAVE_ENDED:
                os.kill(number, signal.SIGKILL)


def _idle(cluster: Cluster, nodes: int) -> None:
    idle = ("sinfo", "-h", "-p", "bench", "-t", "idle", "-o", "%D")
    until(
        lambda: cluster.run(*idle).stdout.strip() == str(nodes),
        lambda: cluster.run("sinfo").stdout,
        pause=0.3,
    )


def test_a_controller_that_is_away_is_waited_for(cluster: Cluster, slurm_run: Start) -> None:
    run = slurm_run("--nodes", 1, "--hours", 1)
    run.wait_until(all_train)
    run.wait_until(all_run)
    saved = cluster.folder / "state" / "job_state"
    before = saved.stat().st_mtime_ns
    cluster.run("scontrol", "update", f"JobId={run.job}", "Comment=to be saved")
    until(lambda: saved.stat().st_mtime_ns > before, pause=0.2)  # Jobs not saved would be lost.
    os.kill(pid_of(cluster.folder, "slurmctld"), signal.SIGKILL)
    try:
        run.wait_until(lambda h: h.scheduler_problem is not None)
        executed = len(run.history.executions)
        status = json.loads(cluster.aiperf("status", run.paths.root, "--json").stdout)
        assert "Unable to contact slurm controller" in status["scheduler_problem"]
        working = {str(phase) for phase in TimePhase}  # Neither silent nor lost, nor ended.
        assert {r["state"] for r in status["replicas"]} <= working
        run.wait_until(lambda h: len(h.executions) > executed)
    finally:
        start_slurmctld(cluster.folder)
    run.wait_until(lambda h: h.scheduler_problem is None)
    history = stop_and_verify(run)
    assert {r.restarts for r in history.replicas.values()} == {0}
    seen = [r.event for r in JournalReader(run.paths.primary_journal).read()]
    states = [e.reachable for e in seen if isinstance(e, records.SchedulerState)]
    assert states == [False, True]
    _idle(cluster, 3)


def test_behind_a_cut_link_a_replica_counts_once(hosts: Cluster, slurm_run: Start) -> None:
    run = slurm_run("--nodes", 1, "--hours", 1, on=hosts)
    run.wait_until(all_train)
    run.wait_until(lambda h: phase(h, "r0") is JobPhase.RUNNING)
    first = run.history.replicas["r0"]
    host, old = present(first.machine).host, pid(run.history, "r0")
    cut_link(hosts.folder, host)
    try:
        run.wait_until(lambda h: resumed(h, "r0", AGAIN))
        second = present(run.history.replicas["r0"].machine)
        assert {host, second.host} == {"n1", "n2"}
        assert alive(old)  # It knows of nothing, and writes on.
        run.wait_until(lambda h: h.fenced > 20)
    finally:
        heal_link(hosts.folder, host)
    run.wait_until(lambda _: not alive(old))
    history = stop_and_verify(run)
    start = min(u for life, u in history.replicas["r0"].starts.items() if life == AGAIN)
    late = [
        r for r in JournalReader(run.paths.replica_journal("r0")).read()
        if r.utc >= start and isinstance(r.event, records.Progress)
    ]  # fmt: skip
    assert late
    counted = {(e.utc, e.trial) for e in history.executions}
    assert not counted & {(r.utc, r.event.trial) for r in late if hasattr(r.event, "trial")}
    _idle(hosts, 2)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, which can be filled. Needs root."""
    if os.getuid() != 0:
        pytest.skip("a small disk needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m", "none", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_on_a_full_disk_replicas_wait_and_say_so(small_disk: Path, slurm_run: Start) -> None:
    run = slurm_run("--nodes", 1, "--hours", 1, folder=small_disk / "run")
    run.wait_until(all_train)
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space left"):
        filler.write_bytes(bytes(2**28))
    time.sleep(8.0)
    before = {name: len(r.trials) for name, r in run.history.replicas.items()}
    filler.unlink()
    run.wait_until(
        lambda h: all(
            r.heartbeat is not None and r.heartbeat.storage_wait_seconds > 5.0
            for r in h.replicas.values()
        )
    )
    executed = len(run.history.executions)
    run.wait_until(lambda h: len(h.executions) > executed + 5)
    history = stop_and_verify(run)
    assert {r.restarts for r in history.replicas.values()} == {0}
    assert {name: len(r.trials) for name, r in history.replicas.items()} == before
