"""MLPerf's description of a system, by MLPerf's own checker."""

from __future__ import annotations

import inspect
import json
import logging
import re
from pathlib import Path

import pytest
from mlperf_logging.system_desc_checker.system_desc_checker import check_system_desc
from tests.support.nodes import node, rank

from aiperf_hpc.analysis.readers.submission import system_of
from aiperf_hpc.results.report.system import read_site
from aiperf_hpc.system.description import SiteDescription, site_template
from aiperf_hpc.system.mlperf import Description, system_description, unknown
from aiperf_hpc.system.node import describe_rank
from aiperf_hpc.system.summary import MachineSummary, summarize

SITE = SiteDescription(
    submitter="Example Centre",
    system_name="JUWELS Booster",
    division="open",
    status="Available on-premise",
    cooling="direct liquid",
    host_networking_topology="DragonFly+",
    accelerator_on_chip_memories="50 MB L2",
)
FIELDS = re.findall(r'"([a-z_-]+)",\n', inspect.getsource(check_system_desc))
"""What the checker requires, read from its own code."""


def machine(nodes: int = 4, site: SiteDescription | None = SITE) -> MachineSummary:
    return summarize([rank(f"n{i:02}", node(i)) for i in range(nodes)], site=site)


def accepted(
    description: Description, folder: Path, *, usage: str = "training", ruleset: str = "5.0.0"
) -> bool:
    """Return whether the checker accepts a description."""
    path = folder / "system.json"
    path.write_text(json.dumps(description))
    valid, *_ = check_system_desc(str(path), usage, ruleset)
    return bool(valid)


@pytest.mark.parametrize(
    ("usage", "ruleset"),
    [("training", "5.0.0"), ("training", "4.1.0"), ("training", "0.7.0"), ("hpc", "3.0.0")],
)
def test_the_checker_accepts_a_cluster(tmp_path: Path, usage: str, ruleset: str) -> None:
    assert accepted(system_description(machine()), tmp_path, usage=usage, ruleset=ruleset)


def test_the_checker_accepts_this_machine_once_it_has_a_status(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = summarize([describe_rank({"run": tmp_path})])
    assert accepted(system_description(found), tmp_path, usage="hpc", ruleset="3.0.0")
    with caplog.at_level(logging.ERROR):
        assert not accepted(system_description(found), tmp_path)
    assert "status contains a non valid value" in caplog.text
    declared = found.model_copy(update={"site": SiteDescription(status="Preview")})
    assert accepted(system_description(declared), tmp_path)


def test_an_unknown_machine_has_all_fields_of_the_checker_and_no_others() -> None:
    assert len(FIELDS) == 33
    assert list(system_description(MachineSummary())) == FIELDS


def test_the_fields_of_a_cluster() -> None:
    """In the checker's order; the project's own reader of submissions can read them."""
    found = system_description(machine())
    assert list(found) == FIELDS
    assert found == {
        "submitter": "Example Centre",
        "division": "open",
        "status": "Available on-premise",
        "system_name": "JUWELS Booster",
        "number_of_nodes": "4",
        "host_processors_per_node": "2",
        "host_processor_model_name": "Intel(R) Xeon(R) Platinum 8480+",
        "host_processor_core_count": "56",
        "host_processor_vcpu_count": "224",
        "host_processor_frequency": "base 2 GHz, at most 3.8 GHz",
        "host_processor_caches": "L1d 5.25 MiB, L3 210 MiB",
        "host_processor_interconnect": "",
        "host_memory_capacity": "2 TiB",
        "host_storage_type": "lustre",
        "host_storage_capacity": "14 PiB",
        "host_networking": "8 × InfiniBand 400 Gb/sec (4X NDR) MT4129 MT_0000000970",
        "host_networking_topology": "DragonFly+",
        "host_memory_configuration": "",
        "accelerators_per_node": "8",
        "accelerator_model_name": "NVIDIA H100",
        "accelerator_host_interconnect": "PCIe 5.0 x16",
        "accelerator_frequency": "1980 MHz",
        "accelerator_on-chip_memories": "50 MB L2",
        "accelerator_memory_configuration": "",
        "accelerator_memory_capacity": "80 GiB",
        "accelerator_interconnect": "18 links of NVIDIA's",
        "accelerator_interconnect_topology": "",
        "cooling": "direct liquid",
        "hw_notes": "",
        "framework": "PyTorch 2.5.1+cu124",
        "other_software_stack":
            {"CUDA driver": "12.4", "driver": "550.54.15", "NCCL": "2.21.5", "cuDNN": "9.1.0"},
        "operating_system": "Ubuntu 22.04.4 LTS, Linux 5.15.0-1053-nvidia",
        "sw_notes": "",
    }  # fmt: skip
    assert unknown({"a": "", "b": "x", "c": {}}) == ["a", "c"]
    read = system_of("juwels", found)
    assert (read.nodes, read.accelerators, read.accelerator) == (4, 32, "NVIDIA H100")
    assert read.framework == "PyTorch 2.5.1+cu124"


def test_a_declared_network_replaces_the_detected_one() -> None:
    declared = SITE.model_copy(update={"host_networking": "4 x HDR, rail-optimised"})
    found = system_description(machine(site=declared))
    assert found["host_networking"] == "4 x HDR, rail-optimised"


def test_the_notes_list_nodes_that_differ() -> None:
    ranks = [rank(f"n{i}", node(i)) for i in range(3)] + [rank("big", node(9, accelerators=4))]
    found = system_description(summarize(ranks))
    assert found["number_of_nodes"] == "4"
    assert found["accelerators_per_node"] == "8"
    assert "besides 1 node of 4 × NVIDIA H100" in str(found["hw_notes"])
    assert "the fields describe 3 of the 4 nodes" in str(found["hw_notes"])


@pytest.mark.parametrize(("on_bus", "count"), [({}, "0"), ({"NVIDIA": 8}, ""), (None, "")])
def test_without_a_vendor_tool_only_an_empty_bus_means_no_accelerators(
    on_bus: dict[str, int] | None, count: str
) -> None:
    bare = node(accelerators=0).model_copy(update={"pci_accelerators": on_bus})
    found = system_description(summarize([rank("n0", bare)]))
    assert found["accelerators_per_node"] == count


def test_the_template_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "system.yaml"
    path.write_text(site_template())
    assert read_site(path) == SiteDescription()
    filled = site_template().replace('status: ""', "status: Preview")
    path.write_text(filled.replace('system_name: ""', "system_name: 42"))
    assert read_site(path) == SiteDescription(status="Preview", system_name="42")
