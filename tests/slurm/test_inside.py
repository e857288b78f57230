"""Runs within an allocation of a real SLURM cluster: each replica a step, nothing submitted."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from tests.slurm.conftest import Cluster, Start, allocated, job_state, phase
from tests.slurm.test_cluster import START, training

from aiperf_hpc.deploy.local_cluster import pid_of, start_slurmd
from aiperf_hpc.trial import JobPhase

HOURS = 0.004


@pytest.fixture
def allocation(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster as it is seen from within an allocation of its three nodes, for ten minutes."""
    with allocated(cluster, "--exclusive", "--nodes=3", "--time=10") as inside:
        yield inside


@pytest.fixture
def heterogeneous(cluster: Cluster) -> Iterator[Cluster]:
    """The same from within a job of two components, in two partitions."""
    one, two = ["--exclusive", "--nodes=1", "--time=4"], ["--exclusive", "--nodes=2", "--time=4"]
    parts = (*one, "--partition=short", ":", *two, "--partition=bench")
    with allocated(cluster, *parts) as inside:
        yield inside


def test_a_run_in_an_allocation(allocation: Cluster, slurm_run: Start) -> None:
    run = slurm_run("--nodes", 3, "--hours", 0.1, on=allocation)
    run.wait_until(training)
    run.kill_primary()
    run.resume()
    run.wait_until(lambda h: all(len(r.starts) == 2 for r in h.replicas.values()))
    os.kill(pid_of(allocation.folder, "n2"), signal.SIGKILL)
    try:
        run.wait_until(lambda h: phase(h, "r1") is JobPhase.LOST)
        detail = job_state(run.history, "r1").detail
        assert detail.startswith("n2 left the allocation: Node failure on n2")
        seen = len(run.history.executions)
        run.wait_until(lambda h: len(h.executions) > seen + 5)
        run.stop()
        run.end()
    finally:
        start_slurmd(allocation.folder, "n2")
    ended = {name: replica.ended for name, replica in run.history.replicas.items()}
    assert ended["r0"] == ended["r2"] == "stopped by `aiperf stop`"
    run.verify()
    assert not {"sbatch", "salloc"} & set(allocation.programs())


def test_a_run_in_a_heterogeneous_job(heterogeneous: Cluster, slurm_run: Start) -> None:
    allocation = heterogeneous
    run = slurm_run("--nodes", 3, "--hours", HOURS, on=allocation)
    job = allocation.environment["SLURM_JOB_ID"]
    choice = f"--launcher auto: inside: this process is in job {job}; its nodes are used"
    assert run.finish() == f"aiperf: {choice}\n"
    assert {phase(run.history, r) for r in run.history.replicas} == {JobPhase.DONE}
    components = [replica.job for replica in run.history.replicas.values()]
    assert components == [f"{job}+0", f"{job}+1", f"{job}+1"]
    arguments = ["--nodes", 2, "--set", "slurm.gres=gpu:8", "--set", "engine.device=cpu"]
    folder = run.paths.root.with_name("refused")
    line = allocation.refusal(*START, "--launcher", "inside", *arguments, "--run-dir", folder)
    assert "Invalid generic resource (gres)" in line  # srun's, of the step that tries.
