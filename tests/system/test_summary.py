"""The summary of a run's machine."""

from __future__ import annotations

import pytest
from tests.support.nodes import node, rank

from aiperf_hpc.system.description import NodeDescription
from aiperf_hpc.system.summary import (
    absences,
    group_nodes,
    machine_line,
    node_rows,
    summarize,
)


def test_equal_nodes_are_one_group() -> None:
    nodes = {f"n{i:02}": node(i) for i in (3, 1, 2)} | {"big": node(9, accelerators=4)}
    first, second = group_nodes(nodes)
    assert (first.count, first.hosts) == (3, ("n01", "n02", "n03"))
    assert (second.count, second.hosts) == (1, ("big",))
    assert first.node == nodes["n01"]


def memory(more: float) -> dict[str, object]:
    """Return the change to a node with this fraction of more memory."""
    first = node().memory
    assert first is not None
    total = int(first.total_bytes * (1 + more))
    return {"memory": first.model_copy(update={"total_bytes": total})}


@pytest.mark.parametrize(
    ("change", "groups"),
    [
        ({"software": {"CUDA driver": "12.2"}}, 2),
        ({"network": ()}, 2),
        ({"accelerators": node(1, model="NVIDIA A100").accelerators}, 2),
        (memory(0.0), 1),
        (memory(0.009), 1),
        (memory(0.011), 2),
        (memory(1.0), 2),
    ],
)
def test_nodes_differ_by_their_parts_and_by_one_percent_of_memory(
    change: dict[str, object], groups: int
) -> None:
    other = node(0).model_copy(update=change)
    assert len(group_nodes({"a": node(0), "b": other})) == groups


def test_the_line_of_a_machine() -> None:
    machine = summarize([rank(f"n{i}", node(i)) for i in range(4)])
    assert machine.node_count == 4
    assert machine_line(machine) == (
        "4 × (8 × NVIDIA H100, 2 × Intel(R) Xeon(R) Platinum 8480+ (112 cores), 2 TiB)"
    )
    assert machine_line(summarize([])) == ""


def test_a_host_counts_once_for_all_its_ranks() -> None:
    ranks = [rank("n0", node()), rank("n0", None), rank("n1", node(1)), rank("n1", None)]
    machine = summarize(ranks)
    assert (machine.ranks, machine.node_count, len(machine.jobs)) == (4, 2, 1)


def test_the_primary_is_listed_if_no_rank_is_on_its_host() -> None:
    primary = rank("login", node(accelerators=0))
    apart = summarize([rank("n0", node())], primary)
    assert apart.primary is not None
    assert (apart.primary.hosts, apart.node_count) == (("login",), 1)
    together = summarize([rank("login", node())], primary)
    assert together.primary is None
    assert summarize([], primary).libraries["NCCL"] == ("2.21.5",)


def test_variables_that_differ_between_ranks_are_named() -> None:
    common = {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "8"}
    machine = summarize([
        rank("n0", node(), variables={**common, "SLURM_PROCID": "0"}),
        rank("n1", node(1), variables={**common, "SLURM_PROCID": "1", "TF_X": "1"}),
    ])  # fmt: skip
    assert machine.environment == common
    assert machine.environment_differs == ("SLURM_PROCID", "TF_X")


def test_the_rows_of_a_node() -> None:
    rows = dict(node_rows(node()))
    assert rows == {
        "processors": "2 × Intel(R) Xeon(R) Platinum 8480+, 112 cores, 224 threads, "
        "base 2 GHz, at most 3.8 GHz",
        "caches": "L1d 5.25 MiB, L3 210 MiB",
        "memory": "2 TiB, 2 NUMA nodes",
        "accelerators": "8 × NVIDIA H100, 80 GiB, at most 1.98 GHz, 650 W (of 700 W), "
        "PCIe 5.0 x16, 18 links, driver 550.54.15",
        "network": "8 × InfiniBand 400 Gb/sec (4X NDR) MT4129 MT_0000000970",
        "file system of run": "lustre from 10.0.0.1@o2ib:/scratch at /scratch, 14 PiB, "
        "options rw,flock",
        "operating system": "Ubuntu 22.04.4 LTS, Linux 5.15.0-1053-nvidia",
        "software": "CUDA driver 12.4",
    }
    assert list(node_rows(NodeDescription())) == []


def test_absences_of_equal_accelerators_are_listed_once() -> None:
    described = node()
    unknown = {"links": None, "absent": {"links": "Not Supported"}}
    accelerators = tuple(each.model_copy(update=unknown) for each in described.accelerators)
    found = list(absences(described.model_copy(update={"accelerators": accelerators})))
    assert found.count(("NVIDIA H100: links", "Not Supported")) == 1
