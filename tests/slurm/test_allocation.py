"""Runs in a job of their own on a real SLURM cluster, each replica a step of it."""

from __future__ import annotations

import os
import signal

from tests.slurm.conftest import Cluster, Start, job_state, phase
from tests.slurm.test_cluster import training
from tests.support.lives import launched_again
from tests.support.waiting import until

from aiperf_hpc.deploy.local_cluster import pid_of, start_slurmd
from aiperf_hpc.trial import JobPhase

HOURS = 0.004
OWN = ["--launcher", "allocation"]


def test_a_dead_nodes_replica_returns_with_it(cluster: Cluster, slurm_run: Start) -> None:
    # A primary that is resumed asks SLURM four times, 5 s apart, before its first sign of life.
    rare = ["--set", "journal.heartbeat_interval_seconds=5"]
    run = slurm_run("--nodes", 3, "--hours", 0.2, *OWN, *rare)
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
