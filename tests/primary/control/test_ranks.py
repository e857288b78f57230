"""Number of ranks where the configuration says `auto`, on simulated machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import UsageError
from aiperf_hpc.host.machine import VisibleDevices
from aiperf_hpc.primary.launchers import ranks as launcher_ranks
from aiperf_hpc.primary.launchers.ranks import Settled
from aiperf_hpc.primary.launchers.slurm.allocation import nodes_inside
from aiperf_hpc.primary.launchers.slurm.jobs import Job, Nodes
from aiperf_hpc.primary.launchers.slurm.resources import settle_on_cluster


def config(**sections: Any) -> RunConfig:  # noqa: ANN401 -- sections, as in a file
    values = {"dataset": {"name": "digits"}, "engine": {"name": "torch"}}
    return RunConfig.model_validate(values | sections)


def settle_here(asked: RunConfig, nodes: int, count: int, *, told: int | None = None) -> Settled:
    """Settle on a machine that tells of so many accelerators, of which an engine sees ``count``."""
    names = tuple(map(str, range(count)))
    seen = VisibleDevices("CUDA_VISIBLE_DEVICES", names) if count else None
    there = ["Example A"] * (count if told is None else told)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher_ranks, "accelerators_told", lambda: there)
        patch.setattr(launcher_ranks, "devices_seen_by_engine", lambda _: seen)
        return launcher_ranks.settle_here(asked, nodes)


def numbers(settled: Settled) -> tuple[object, object]:
    replica = settled.config.replica
    return replica.ranks_per_node, replica.collective


def given(settled: Settled) -> list[str]:
    return [each.removeprefix("CUDA_VISIBLE_DEVICES=") for each in settled.devices]


@pytest.mark.parametrize(
    ("nodes", "count", "ranks", "collective", "devices"),
    [
        (1, 0, 1, "mpi", []),
        (3, 0, 1, "mpi", []),
        (1, 4, 4, "torch", ["0,1,2,3"]),
        (2, 4, 2, "torch", ["0,1", "2,3"]),
        (8, 8, 1, "mpi", ["0", "1", "2", "3", "4", "5", "6", "7"]),  # A sum of one is none.
        (3, 2, 1, "mpi", ["0", "1", "0"]),
    ],
)
def test_local_replicas(
    nodes: int, count: int, ranks: int, collective: str, devices: list[str]
) -> None:
    settled = settle_here(config(), nodes, count)
    assert numbers(settled) == (ranks, collective)
    assert given(settled) == devices


def test_a_replica_of_several_nodes_has_the_accelerators_of_all() -> None:
    settled = settle_here(config(replica={"nodes": 2}), 2, 4)
    assert (numbers(settled), given(settled)) == ((2, "torch"), ["0,1,2,3"])


@pytest.mark.parametrize(
    ("ranks", "nodes", "remark"),
    [
        (2, 1, "2 accelerators are left idle, of this machine's 4"),
        (
            1,
            3,
            "an accelerator is left idle, of this machine's 4: the closed division requires "
            "that all are used; --nodes 4 makes a replica for each",
        ),
        (4, 2, "8 ranks share 4 accelerators: the score is that of an oversubscribed machine"),
    ],
)
def test_what_stays_idle_or_is_shared_is_said(ranks: int, nodes: int, remark: str) -> None:
    asked = config(replica={"ranks_per_node": ranks})
    (said,) = settle_here(asked, nodes, 4).remarks
    assert said.startswith(remark)


def test_every_accelerator_used_needs_no_word() -> None:
    assert settle_here(config(), 1, 4).remarks == ()


def test_gradients_through_the_hosts_memory_are_said() -> None:
    (said,) = settle_here(config(engine={"name": "tensorflow"}), 1, 2).remarks
    assert "pass through host memory" in said


def test_more_ranks_than_accelerators_are_refused() -> None:
    asked = config(replica={"ranks_per_node": 8})
    with pytest.raises(UsageError, match=r"ranks_per_node 8: .* sees 4 here .* at most 4, or "):
        settle_here(asked, 1, 4)
    assert settle_here(asked, 1, 0).config == asked.settled()  # On CPUs they may be any.


def test_accelerators_that_the_engine_does_not_see_are_an_error_unless_asked_for() -> None:
    with pytest.raises(UsageError, match=r"has 2 x Example A, which engine 'torch' does not see"):
        settle_here(config(replica={"ranks_per_node": 1}), 1, 0, told=2)
    asked = config(engine={"name": "tensorflow", "device": "cpu"})
    assert settle_here(asked, 1, 0, told=2) == Settled(asked.settled())


def test_an_engine_is_loaded_only_where_the_machine_tells_of_an_accelerator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def loaded(_: RunConfig) -> VisibleDevices | None:
        raise AssertionError("loading takes seconds")

    monkeypatch.setattr(launcher_ranks, "accelerators_told", list)
    monkeypatch.setattr(launcher_ranks, "devices_seen_by_engine", loaded)
    assert numbers(launcher_ranks.settle_here(config(), 2)) == (1, "mpi")


def test_ranks_on_cpus_are_joined_by_torch_where_there_is_no_mpi(without: Any) -> None:  # noqa: ANN401 -- a function of conftest.py
    without("mpi4py")
    assert numbers(settle_here(config(replica={"nodes": 2}), 2, 0)) == (1, "torch")
    without("mpi4py", "torch")
    assert numbers(settle_here(config(replica={"nodes": 2}), 2, 0)) == (1, "mpi")


def test_a_batch_that_cannot_be_divided_among_the_ranks_is_refused() -> None:
    small = {"batch_size": 2}
    with pytest.raises(UsageError, match="with 4 ranks a node: a batch of 2 samples cannot be"):
        settle_here(config(training=small), 1, 4)


def group(count: int, gres: str, state: str = "idle") -> Nodes:
    return Nodes("bench", True, True, state, count, gres, 60.0)


def on_cluster(found: Sequence[Nodes], **sections: Any) -> Settled:  # noqa: ANN401
    return settle_on_cluster(config(**sections), 2, found)


def test_what_slurm_is_asked_for_is_how_many_ranks_there_are() -> None:
    settled = on_cluster([], slurm={"gres": "gpu:h100:4,ssd:1"})
    assert numbers(settled) == (4, "torch")
    extra = on_cluster([], slurm={"extra_directives": ["--gpus-per-node=h100:2"]})
    assert (numbers(extra), extra.config.slurm.gres) == ((2, "torch"), None)


@pytest.mark.parametrize(
    ("slurm", "said"),
    [
        ({}, True),
        ({"cpus_per_task": 16}, False),
        ({"extra_directives": ["--cpus-per-gpu=16"]}, False),
        ({"exclusive": True}, False),
    ],
)
def test_replicas_that_share_nodes_are_asked_for_cpus(slurm: dict[str, Any], said: bool) -> None:
    settled = on_cluster([], slurm={"gres": "gpu:1", "exclusive": False, **slurm})
    assert [each.startswith("replicas share nodes") for each in settled.remarks] == [True] * said


@pytest.mark.parametrize(
    ("found", "gres", "ranks"),
    [
        ([group(2, "gpu:h100:4(S:0-1)")], "gpu:4", 4),
        ([group(2, "gpu:4"), group(1, "gpu:8")], "gpu:4", 4),
        ([group(2, "gpu:4"), group(2, "gpu:8"), group(9, "")], "gpu:8", 8),
        ([group(2, "gpu:4"), group(2, "gpu:8", "down*")], "gpu:4", 4),
        ([group(2, "npu:910b:8,ssd:1")], "npu:8", 8),
        ([group(2, "")], None, 1),
        ([group(2, "ssd:1")], None, 1),
    ],
)
def test_gres_offered_by_enough_nodes(found: Sequence[Nodes], gres: str | None, ranks: int) -> None:
    settled = on_cluster(found)
    assert (settled.config.slurm.gres, settled.config.replica.ranks) == (gres, ranks)


def test_a_partition_of_which_too_few_nodes_have_accelerators_is_to_be_said_more_of() -> None:
    mixed = [group(1, "gpu:4"), group(1, "")]
    with pytest.raises(UsageError, match=r"1 nodes of 'bench' have accelerators"):
        on_cluster(mixed)
    assert numbers(on_cluster(mixed, engine={"name": "torch", "device": "cpu"})) == (1, "mpi")


def test_in_an_allocation_it_is_what_its_nodes_were_asked_for() -> None:
    job = Job("17", "RUNNING", nodes=("n1", "n2"), gres="gres:gpu:4")
    asked = config(slurm={"partition": "another"})
    settled = settle_on_cluster(asked, 2, nodes_inside([job], {}), inside=True)
    assert (settled.config.slurm.gres, numbers(settled)) == ("gpu:4", (4, "torch"))
    eight = config(slurm={"gres": "gpu:8"})
    with pytest.raises(UsageError, match=r"slurm.gres gpu:8: the nodes of job 17, .* gres:gpu:4"):
        settle_on_cluster(eight, 2, nodes_inside([job], {}), inside=True)
    whole = nodes_inside([replace(job, gres="")], {"SLURM_JOB_GPUS": "0,1"})
    assert numbers(settle_on_cluster(asked, 2, whole, inside=True)) == (2, "torch")
    other = Job("18", "RUNNING", nodes=("n3",), gres="gres/gpu:h100:8")  # A heterogeneous job's.
    assert numbers(settle_on_cluster(asked, 3, nodes_inside([job, other], {}), inside=True)) == (
        4,
        "torch",
    )


def test_fewer_and_more_ranks_than_a_node_has_accelerators() -> None:
    fewer = on_cluster([group(2, "gpu:4")], replica={"ranks_per_node": 3})
    assert fewer.config.slurm.gres == "gpu:4"
    assert fewer.remarks[0].startswith("an accelerator is left idle, of the 4 of each node that ")
    with pytest.raises(UsageError, match=r"ranks_per_node 5: .* a node has 4, requested by gpu:4"):
        on_cluster([], replica={"ranks_per_node": 5}, slurm={"gres": "gpu:4"})


def test_the_sites_own_script_asks_for_what_it_wants() -> None:
    settled = on_cluster([group(2, "gpu:4")], slurm={"template": "site.sh"})
    assert (numbers(settled), settled.config.slurm.gres) == ((1, "mpi"), None)
