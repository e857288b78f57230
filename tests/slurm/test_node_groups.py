"""A run on nodes of two partitions of a real cluster: a job each."""

from __future__ import annotations

from tests.slurm.conftest import Cluster, Start, phase
from tests.slurm.test_cluster import START

from aiperf_hpc.trial import JobPhase

HOURS = 0.004
GROUPS = "slurm.node_groups=[{partition: bench, nodes: 2}, {partition: short, nodes: 1}]"
ALLOCATION = ["--launcher", "allocation"]


def test_a_run_on_nodes_of_two_partitions(cluster: Cluster, slurm_run: Start) -> None:
    shorter = ["slurm.time_margin_minutes=3", "slurm.signal_seconds=60"]  # As `short` allows.
    settings = [word for each in [GROUPS, *shorter] for word in ("--set", each)]
    run = slurm_run("--nodes", 3, "--hours", HOURS, *ALLOCATION, *settings)
    assert run.finish() == ""
    assert {phase(run.history, r) for r in run.history.replicas} == {JobPhase.DONE}
    assert {r.granted_utc for r in run.history.replicas.values()} != {None}
    partitions = {
        name: described.process.job and described.process.job.partition
        for name, replica in run.history.replicas.items()
        for described in replica.described.values()
    }
    assert partitions == {"r0": "bench", "r1": "bench", "r2": "short"}
    jobs = [run.history.replicas[name].job for name in ("r0", "r1", "r2")]
    assert jobs[0] == jobs[1] != jobs[2]
    assert cluster.programs().count("salloc") == 2
    assert cluster.run("squeue", "-h").stdout == ""
    refused = [*START, "--nodes", 3, *ALLOCATION, "--set", GROUPS.replace("short", "long")]
    line = cluster.refusal(*refused, "--run-dir", run.paths.root.with_name("refused"))
    assert "slurm.node_groups.1.partition: SLURM has no partition 'long'" in line
