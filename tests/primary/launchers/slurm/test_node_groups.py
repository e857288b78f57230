"""Runs on two kinds of nodes: requests, placement and rejected configurations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.primary.launchers.slurm.fake_slurm import ArrayCluster, Srun, StepCluster, manifest

from aiperf_hpc.config import SlurmConfig
from aiperf_hpc.errors import ConfigError, UsageError
from aiperf_hpc.primary.launchers.ranks import Settled
from aiperf_hpc.primary.launchers.slurm.array_launcher import ArrayLauncher
from aiperf_hpc.primary.launchers.slurm.backend import BACKEND
from aiperf_hpc.primary.launchers.slurm.client import Answer, RateLimit, SlurmClient
from aiperf_hpc.primary.launchers.slurm.jobs import Job, Nodes
from aiperf_hpc.primary.launchers.slurm.resources import (
    FOREIGN,
    check_cluster,
    group_of,
    groups_of,
    in_its_group,
    require_none,
    settle_on_cluster,
)
from aiperf_hpc.primary.launchers.slurm.step_launcher import StepLauncher
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import JobPhase

INFINITY = float("inf")
HOPPER = {"partition": "hopper", "nodes": 2, "gres": "gpu:h100:8"}
INSTINCT = {"partition": "instinct", "nodes": 1, "gres": "gpu:mi300x:4", "constraint": "new"}
FOUND = [
    Nodes("hopper", True, True, "idle", 3, "gpu:h100:8(S:0-1)", INFINITY),
    Nodes("instinct", False, True, "idle", 1, "gpu:mi300x:4", INFINITY),
    Nodes("cpus", False, True, "idle", 4, "", INFINITY),
]
NODES = {"n1": "hopper", "n2": "hopper", "m1": "instinct"}


def two_kinds(launcher: str = "array") -> RunManifest:
    return manifest(3, node_groups=[HOPPER, INSTINCT]).model_copy(update={"launcher": launcher})


def options(command: Iterable[str] | str, *names: str) -> list[str]:
    """Return the options of these names."""
    words = command.split() if isinstance(command, str) else command
    return [word for word in words if word.split("=")[0].lstrip("-") in names]


def test_replicas_belong_to_groups_in_their_order() -> None:
    run = two_kinds()
    assert [group_of(run, f"r{number}") for number in range(3)] == [0, 0, 1]
    assert [group.slurm.gres for group in groups_of(run)] == ["gpu:h100:8", "gpu:mi300x:4"]
    assert group_of(manifest(2), "r7") == 0  # One that joined a run of one group.


# An array for each.


@pytest.fixture
def cluster() -> ArrayCluster:
    return ArrayCluster()


def array(cluster: ArrayCluster, folder: Path) -> ArrayLauncher:
    client = SlurmClient(cluster)
    return ArrayLauncher(two_kinds(), RunPaths(folder), client, RateLimit(cluster))


def test_each_group_is_an_array(cluster: ArrayCluster, tmp_path: Path) -> None:
    cluster.answers["sbatch"] = [Answer(0, "17\n", ""), Answer(0, "18\n", "")]
    launcher = array(cluster, tmp_path)
    assert launcher.start() == {"r0": "17_0", "r1": "17_1", "r2": "18_2"}
    first, second = cluster.said("sbatch")
    assert first[1:-1] == ("--array=0-1", "--partition=hopper", "--gres=gpu:h100:8")
    assert second[1:-1] == (
        "--array=2", "--partition=instinct", "--gres=gpu:mi300x:4", "--constraint=new",
    )  # fmt: skip
    assert cluster.gaps == [5.0]
    cluster.queue("17_0|RUNNING|None|n1|0", "17_1|PREEMPTED|None|n2|0", "18_2|RUNNING|None|m1|0")
    assert cluster.until(launcher, "r2", JobPhase.RUNNING)["r2"].node == "m1"
    cluster.answers["sbatch"] = [Answer(0, "19\n", "")]
    assert launcher.add(["r1"]) == {"r1": "19_1"}  # One whose node was taken away returns.
    assert "--partition=hopper" in cluster.said("sbatch")[-1]


def test_one_refused_group_starts_nothing(cluster: ArrayCluster, tmp_path: Path) -> None:
    refusal = Answer(1, "", "sbatch: error: Batch job submission failed: Invalid feature")
    cluster.answers["sbatch"] = [Answer(0, "17\n", ""), refusal]
    with pytest.raises(UsageError, match=r"Invalid feature; nothing was started"):
        array(cluster, tmp_path).start()
    assert cluster.said("scancel") == [("17",)]


def test_a_dry_run_shows_what_each_group_is_asked_for_by(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    *_, one, two = BACKEND.dry_run(two_kinds(), paths).splitlines()
    assert one == f"# sbatch --array=0-1 --partition=hopper --gres=gpu:h100:8 {paths.batch_script}"
    assert two.startswith("# sbatch --array=2 --partition=instinct --gres=gpu:mi300x:4 ")
    one, two, *steps = BACKEND.dry_run(two_kinds("allocation"), paths).splitlines()
    assert options(one, "nodes", "partition") == ["--nodes=2", "--partition=hopper"]
    assert options(two, "nodes", "constraint") == ["--nodes=1", "--constraint=new"]
    assert [re.findall("--gres=\\S+", step) for step in steps] == [
        ["--gres=gpu:h100:8"], ["--gres=gpu:h100:8"], ["--gres=gpu:mi300x:4"],
    ]  # fmt: skip


# A job for each, with steps.


@pytest.fixture
def held(tmp_path: Path) -> StepCluster:
    """A cluster that grants a job of two nodes, then one of another partition."""
    cluster = StepCluster(tmp_path)
    cluster.gres = ""
    cluster.jobs = {"17": ("RUNNING", ["n1", "n2"]), "18": ("PENDING", [])}
    cluster.partitions = {"17": "hopper", "18": "instinct"}
    return cluster


KINDS = [{"partition": "hopper", "nodes": 2}, {"partition": "instinct", "nodes": 1}]


def allocating(cluster: StepCluster, launch: int = 0) -> StepLauncher:
    return cluster.allocating(manifest(3, node_groups=KINDS), launch)


def says(cluster: StepCluster, *jobs: str) -> None:
    """Let each salloc tell of another job."""
    numbers = iter(jobs)
    spawned = cluster.spawn

    def spawn(command: Sequence[str], log: Path) -> Srun:
        if command[0] == "salloc":
            cluster.says = f"salloc: Pending job allocation {next(numbers)}\n"
        return spawned(command, log)

    cluster.spawn = spawn  # type: ignore[method-assign]


def test_each_group_is_a_job_of_steps(held: StepCluster) -> None:
    says(held, "17", "18")
    launcher = allocating(held)
    assert launcher.start() == {"r0": "17", "r1": "17", "r2": "18"}
    asked = [options(command, "partition", "nodes") for command in held.said("salloc")]
    assert asked == [["--nodes=2", "--partition=hopper"], ["--nodes=1", "--partition=instinct"]]
    held.sallocs[0].end(0)
    launcher.states()
    assert [(s.option("jobid"), s.option("nodelist")) for s in held.sruns] == [
        ("17", "n1"), ("17", "n2"),
    ]  # fmt: skip
    assert held.looked(launcher)["r2"].phase is JobPhase.PENDING
    assert len(held.sallocs) == 2  # It is waited for, and asked for no second time.
    held.jobs["18"] = ("RUNNING", ["m1"])
    held.trial = Answer(0, "m1 host\n", "")
    held.sallocs[1].end(0)
    held.looked(launcher)
    assert launcher.states()["r2"].node == "m1"


def test_a_lost_node_is_replaced_by_one_of_its_group(held: StepCluster) -> None:
    held.jobs["18"] = ("RUNNING", ["m1"])
    launcher = allocating(held, launch=1)  # Each job is told by the partition that it is in.
    assert launcher.start() == {"r0": "17", "r1": "17", "r2": "18"}
    assert [s.option("nodelist") for s in held.sruns] == ["n1", "n2", "m1"]
    assert held.sallocs == []
    held.jobs["18"] = ("NODE_FAIL", ["m1"])  # A job whose only node fails has ended.
    held.sruns[2].end(0, "srun: error: Node failure on m1\n")
    says(held, "19")
    assert held.looked(launcher)["r2"].phase is JobPhase.REQUEUED
    held.looked(launcher)
    (asked,) = held.said("salloc")
    assert options(asked, "partition", "nodes") == ["--nodes=1", "--partition=instinct"]
    held.jobs["19"], held.partitions["19"] = ("RUNNING", ["m2"]), "instinct"
    held.trial = Answer(0, "m2 host\n", "")
    held.sallocs[-1].end(0)
    assert launcher.states()["r2"].detail.endswith("; restarted on m2")


def test_a_job_of_the_run_that_is_of_no_group_is_given_back(held: StepCluster) -> None:
    held.partitions["18"], held.jobs["18"] = "elsewhere", ("RUNNING", ["x1"])
    says(held, "19")
    launcher = allocating(held, launch=1)
    assert launcher.start() == {"r0": "17", "r1": "17", "r2": "19"}
    assert len(held.said("srun")) == 1  # Nothing is tried on its nodes.
    held.jobs["19"], held.partitions["19"] = ("RUNNING", ["m1"]), "instinct"
    held.trial = Answer(0, "m1 host\n", "")
    held.sallocs[0].end(0)
    launcher.states()
    assert [s.option("nodelist") for s in held.sruns] == ["n1", "n2", "m1"]
    held.looked(launcher)
    held.looked(launcher)
    assert ("18",) in held.said("scancel")


def test_when_slurm_refuses_one_job_the_other_is_given_back(held: StepCluster) -> None:
    says(held, "17", "refused")
    held.jobs, held.salloc_status = {}, 1
    launcher = allocating(held)
    with pytest.raises(UsageError, match="SLURM refused the job: salloc"):
        launcher.start()
    assert held.said("scancel") == [("17",)]


def test_a_job_that_was_asked_for_otherwise_is_of_no_group() -> None:
    groups = groups_of(two_kinds())
    hopper = Job("17", "RUNNING", partition="hopper", gres="gres:gpu:h100:8")
    assert in_its_group(hopper, groups).group == 0
    other = Job("18", "RUNNING", partition="instinct", gres="gres:gpu:mi300x:4")
    assert in_its_group(other, groups).group == FOREIGN  # Without the feature.


# What is refused.


@pytest.mark.parametrize(
    ("groups", "nodes", "said"),
    [
        ([HOPPER, INSTINCT], 4, "--nodes 4: slurm.node_groups has 3 nodes"),
        (
            [HOPPER, INSTINCT | {"partition": "nosuch"}], 3,
            "slurm.node_groups.1.partition: SLURM has no partition 'nosuch'",
        ),
        (
            [HOPPER, INSTINCT | {"nodes": 2}], 4,
            "slurm.node_groups.1.nodes 2: partition 'instinct' has 1 nodes that can be used",
        ),
        (
            [HOPPER, INSTINCT | {"gres": "gpu:h100:4"}], 3,
            "slurm.node_groups.1.gres gpu:h100:4: 0 nodes of partition 'instinct' offer it",
        ),
        (
            [HOPPER, HOPPER | {"constraint": "new"}], 4,
            "2 groups ask for 4 nodes of partition 'hopper', which has 3",
        ),
    ],
)  # fmt: skip
def test_missing_resources_of_a_group(groups: list[dict[str, Any]], nodes: int, said: str) -> None:
    slurm = SlurmConfig.model_validate({"node_groups": groups})
    with pytest.raises(UsageError, match=re.escape(said)):
        check_cluster(slurm, nodes, 1.0, FOUND)


def test_what_there_is_is_enough() -> None:
    check_cluster(two_kinds().config.slurm, 3, 1.0, FOUND)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([HOPPER, HOPPER], "node_groups.0 and node_groups.1 request the same nodes"),
        ([HOPPER | {"nodes": 0}], "slurm.node_groups.0.nodes: .*got 0"),
        ([{"nodes": 1}], "slurm.node_groups.0.partition: is missing"),
        ([HOPPER | {"partitoin": "a"}], "did you mean 'slurm.node_groups.0.partition'"),
    ],
)
def test_groups_that_say_nothing_are_refused(values: list[Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        manifest(3, node_groups=values)


def test_an_allocation_has_the_nodes_that_it_has() -> None:
    with pytest.raises(UsageError, match="leave slurm.node_groups out"):
        require_none(two_kinds().config.slurm)


# Ranks.


def settled(*groups: dict[str, Any], ranks: int | None = None) -> Settled:
    config = manifest(3, node_groups=groups).config
    replica = config.replica.model_copy(update={"ranks_per_node": ranks or "auto"})
    return settle_on_cluster(config.model_copy(update={"replica": replica}), 3, FOUND)


def test_a_node_has_as_many_ranks_as_the_one_with_the_fewest_accelerators() -> None:
    unsaid = {"partition": "instinct", "nodes": 1}
    found = settled(HOPPER, unsaid)
    assert found.config.replica.ranks_per_node == 4
    assert [g.gres for g in found.config.slurm.node_groups] == ["gpu:h100:8", "gpu:4"]
    (left, *_) = found.remarks
    assert left.startswith("4 accelerators are left idle, of the 8 of each node")
    with pytest.raises(UsageError, match="a node has 4, that 'instinct' offers"):
        settled(HOPPER, unsaid, ranks=8)


def test_nodes_without_accelerators_are_not_mixed_with_others() -> None:
    with pytest.raises(UsageError, match=r"slurm\.node_groups\.1: its nodes have no accelerators"):
        settled(HOPPER, {"partition": "cpus", "nodes": 1})
