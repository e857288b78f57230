"""Runs in a job of their own on a real SLURM cluster, each replica a step of it."""

from __future__ import annotations

import os
import signal

from tests.slurm.conftest import FAST, Cluster, Start, job_state, phase
from tests.slurm.test_cluster import START, training
from tests.support.lives import launched_again
from tests.support.waiting import until

from aiperf_hpc.deploy.local_cluster import pid_of, start_slurmd
from aiperf_hpc.trial import JobPhase

HOURS = 0.004
OWN = ["--launcher", "allocation"]


def test_a_run_in_a_job_of_its_own(cluster: Cluster, slurm_run: Start) -> None:
    run = slurm_run("--nodes", 3, "--hours", HOURS, *OWN, config=FAST)
    assert run.finish() == ""
    assert {phase(run.history, r) for r in run.history.replicas} == {JobPhase.DONE}
    assert {r.granted_utc for r in run.history.replicas.values()} != {None}
    names = cluster.programs()
    assert names.count("salloc") == 1
    assert names.count("squeue") <= 2
    assert names.count("srun") == 4  # One tries the nodes.
    assert "sbatch" not in names
    assert cluster.run("squeue", "-h").stdout == ""  # Its nodes are given back.
    refused = [*START, "--nodes", 1, *OWN, "--set", "slurm.constraint=nosuchfeature"]
    line = cluster.refusal(*refused, "--run-dir", run.paths.root.with_name("refused"))
    assert "SLURM refused the job: salloc: " in line
    assert "Invalid feature specification" in line


def test_a_dead_nodes_replica_returns_with_it(cluster: Cluster, slurm_run: Start) -> None:
    # A primary that is resumed asks SLURM four times, 5 s apart, before its first sign of life.
    rare = ["--set", "journal.heartbeat_interval_seconds=5"]
    run = slurm_run("--nodes", 3, "--hours", 0.2, *OWN, *rare, config=FAST)
    run.wait_until(training)
    # The first of the allocation: nothing of the job depends on it.
    assert job_state(run.history, "r0").node == "n1"
    os.kill(pid_of(cluster.folder, "n1"), signal.SIGKILL)
    try:
        run.wait_until(lambda h: phase(h, "r0") is JobPhase.REQUEUED)
        seen = len(run.history.executions)
        run.wait_until(lambda h: len(h.executions) > seen + 5)
        until(lambda: "PD" in cluster.run("squeue", "-h", "-o", "%t").stdout, pause=0.5)
    finally:
        start_slurmd(cluster.folder, "n1")
    run.wait_until(lambda h: phase(h, "r0") is JobPhase.RUNNING)
    second = max(run.history.replicas["r0"].starts.values())
    run.wait_until(lambda h: any(e.utc > second for e in h.executions))
    run.kill_primary()
    run.resume()  # Both jobs are there, and are used again.
    run.wait_until(launched_again)
    run.stop()
    run.finish()
    assert {r.ended for r in run.history.replicas.values()} == {"stopped by `aiperf stop`"}
    assert cluster.run("squeue", "-h").stdout == ""
