"""A run's machine in few words."""

from __future__ import annotations

import pytest
from tests.support.nodes import node, rank

from aiperf_hpc.system.description import NodeDescription
from aiperf_hpc.system.summary import (
    absences,
    group_nodes,
    machine_line,
    node_rows,
    size,
    summarize,
)


def test_equal_nodes_are_told_together() -> None:
    nodes = {f"n{i:02}": node(i) for i in (3, 1, 2)} | {"big": node(9, accelerators=4)}
    groups = group_nodes(nodes)
    assert [(group.count, group.hosts) for group in groups] == [
        (3, ("n01", "n02", "n03")),
        (1, ("big",)),
    ]
    assert groups[0].node == nodes["n01"]


@pytest.mark.parametrize(
    "change",
    [
        {"software": {"CUDA driver": "12.2"}},
        {"network": ()},
        {"accelerators": node(1, model="NVIDIA A100").accelerators},
    ],
)
def test_what_makes_nodes_differ(change: dict[str, object]) -> None:
    other = node(1).model_copy(update=change)
    assert len(group_nodes({"a": node(0), "b": other})) == 2


@pytest.mark.parametrize(("more", "groups"), [(0.0, 1), (0.009, 1), (0.011, 2), (1.0, 2)])
def test_memory_of_equal_nodes_differs_a_little(more: float, groups: int) -> None:
    first = node(0)
    assert first.memory is not None
    size = int(first.memory.total_bytes * (1 + more))
    other = first.model_copy(update={"memory": first.memory.model_copy(update={
        "total_bytes": size})})  # fmt: skip
    assert len(group_nodes({"a": first, "b": other})) == groups


def test_a_line_says_how_many_of_what() -> None:
    machine = summarize([rank(f"n{i}", node(i)) for i in range(4)])
    assert machine.node_count == 4
    assert machine_line(machine) == (
        "4 × (8 × NVIDIA H100, 2 × Intel(R) Xeon(R) Platinum 8480+ (112 cores), 2 TiB)"
    )
    assert machine_line(summarize([])) == ""


def test_ranks_of_one_host_count_it_once() -> None:
    ranks = [rank("n0", node()), rank("n0", None), rank("n1", node(1)), rank("n1", None)]
    machine = summarize(ranks)
    assert machine.ranks == 4
    assert machine.node_count == 2
    assert len(machine.jobs) == 1


def test_the_primary_counts_where_no_rank_is() -> None:
    primary = rank("login", node(accelerators=0))
    apart = summarize([rank("n0", node())], primary)
    assert apart.primary is not None
    assert apart.primary.hosts == ("login",)
    assert apart.node_count == 1
    together = summarize([rank("login", node())], primary)
    assert together.primary is None
    assert summarize([], primary).libraries["NCCL"] == ("2.21.5",)


def test_variables_are_told_once_or_named() -> None:
    common = {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "8"}
    machine = summarize([
        rank("n0", node(), variables={**common, "SLURM_PROCID": "0"}),
        rank("n1", node(1), variables={**common, "SLURM_PROCID": "1", "TF_X": "1"}),
    ])  # fmt: skip
    assert machine.environment == common
    assert machine.environment_differs == ("SLURM_PROCID", "TF_X")


def test_rows_tell_what_is_known() -> None:
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


def test_absences_of_equal_accelerators_are_told_once() -> None:
    described = node()
    untold = tuple(
        each.model_copy(update={"links": None, "absent": {"links": "Not Supported"}})
        for each in described.accelerators
    )
    found = list(absences(described.model_copy(update={"accelerators": untold})))
    assert found.count(("NVIDIA H100: links", "Not Supported")) == 1


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (80 * 2**30, "80 GiB"), (2**60, "1024 PiB")]
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text
