"""Ranks on nodes with accelerators, on a real cluster of two nodes with four each.

The cluster's accelerators are device files that nothing computes on, so that the engine is the
simulated one; what SLURM counts, gives and names is real.
"""

from __future__ import annotations

from pathlib import Path

from tests.slurm.conftest import FAST, Cluster, Start, allocated

START = ["start", "--nodes", 2, "--hours", 0.1, "--config", FAST, "--yes"]
SEEN = ["--set", "engine.simulation.accelerators=4"]


def test_every_accelerator_has_a_rank(accelerated: Cluster, slurm_run: Start) -> None:
    run = slurm_run(
        # By gloo: MPI of a node of two cores, as a test machine's, has no room for four ranks.
        "--nodes", 1, "--hours", 1, *SEEN, "--set", "replica.collective=torch", on=accelerated,
    )  # fmt: skip
    run.wait_until(lambda h: [len(r.described) for r in h.replicas.values()] == [4])
    run.stop()
    run.finish()
    told = [
        description.process
        for replica in run.history.replicas.values()
        for _, description in sorted(replica.described.items())
    ]
    numbers = [f"CUDA_VISIBLE_DEVICES={number}" for number in range(4)]
    assert [process.accelerator for process in told] == numbers
    assert {process.environment["SLURM_STEP_GPUS"] for process in told} == {"0,1,2,3"}
    manifest = run.paths.manifest.read_text("utf-8")
    assert "ranks_per_node: 4" in manifest
    assert "gres: gpu:4" in manifest


def test_replicas_share_nodes(accelerated: Cluster, slurm_run: Start) -> None:
    """As the preset `imagenet_gpu` asks for them: three replicas, of two nodes."""
    shared = ("slurm.gres=gpu:1", "slurm.exclusive=false", "replica.ranks_per_node=1")
    settings = [word for each in shared for word in ("--set", each)]
    run = slurm_run("--nodes", 3, "--hours", 1, *SEEN, *settings, on=accelerated)
    run.wait_until(lambda h: [len(r.described) for r in h.replicas.values()] == [1, 1, 1])
    run.stop()
    run.finish()
    bound = {
        (process.environment["SLURM_JOB_NODELIST"], process.accelerator)
        for replica in run.history.replicas.values()
        for process in (replica.described[0].process,)
    }
    assert len(bound) == 3
    assert len({node for node, _ in bound}) < 3


def test_steps_of_an_allocation_have_its_accelerators(accelerated: Cluster, tmp_path: Path) -> None:
    with allocated(accelerated, "--nodes=2", "--gres=gpu:2", "--time=200") as inside:
        done = inside.aiperf(*START, *SEEN, "--dry-run", "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    steps = done.stdout.splitlines()
    assert len(steps) == 2
    assert all("--ntasks-per-node=2" in step and "--gres=gpu:2" in step for step in steps)
