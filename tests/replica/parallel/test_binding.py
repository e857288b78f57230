"""The accelerator and the cores of a rank."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.run_manifest import run_manifest

from aiperf_hpc.config import ReplicaConfig, validate
from aiperf_hpc.errors import PreflightError
from aiperf_hpc.host.machine import BOUND, VisibleDevices, devices_seen
from aiperf_hpc.primary.launchers import ranks
from aiperf_hpc.primary.launchers.base import local_commands
from aiperf_hpc.replica.engines.torch.device import choose_device
from aiperf_hpc.replica.parallel.binding import (
    LOCAL_RANKS,
    Cores,
    bind,
    devices_of_job,
    local_rank,
    near_each,
    share_of,
)
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.system.description import Accelerator

FOUR = VisibleDevices("CUDA_VISIBLE_DEVICES", ("0", "1", "2", "3"))


def bound(given: VisibleDevices, ranks: int, **environment: str) -> dict[str, str]:
    bind(given, ReplicaConfig(ranks_per_node=ranks), environment)
    return environment


@pytest.mark.parametrize("variable", LOCAL_RANKS)
def test_a_rank_is_bound_to_the_accelerator_of_its_local_rank(variable: str) -> None:
    found = bound(FOUR, 4, **{variable: "2"})
    assert found["CUDA_VISIBLE_DEVICES"] == "2"
    assert found[BOUND] == "CUDA_VISIBLE_DEVICES=2"


def test_each_of_eight_replicas_computes_on_an_accelerator_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the primary's allocation to PyTorch's device, on a simulated machine."""
    config = validate({"dataset": {"name": "digits"}, "engine": {"name": "torch"}}, "test")
    seen = VisibleDevices("CUDA_VISIBLE_DEVICES", tuple(map(str, range(8))))
    monkeypatch.setattr(ranks, "accelerators_told", lambda: ["Example A"] * 8)
    monkeypatch.setattr(ranks, "devices_seen_by_engine", lambda _: seen)
    settled = ranks.settle_here(config, 8)
    manifest = run_manifest(
        settled.config,
        run_id="r",
        nodes=8,
        cores=tuple((core,) for core in range(8)),
        devices=settled.devices,
    )
    found = []
    for command in local_commands(manifest, RunPaths(Path("run"))).values():
        given = VisibleDevices.parse(command[command.index("--devices") + 1])
        environment = {"LOCAL_RANK": "0"}
        bind(given, settled.config.replica, environment)
        left = environment["CUDA_VISIBLE_DEVICES"].split(",")
        module = Driver(len(left))
        monkeypatch.setattr(torch, "get_device_module", lambda kind, module=module: module)
        monkeypatch.setattr(os, "environ", environment)
        assert choose_device("cuda", local_rank(environment)) == module.current
        found.append(left[module.current.index])
    assert found == list(seen.names)


def test_an_unbound_rank_computes_on_the_device_of_its_local_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = Driver(8)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: module)
    monkeypatch.setattr(os, "environ", {})
    assert choose_device("cuda", 5) == module.current == torch.device("cuda", 5)


class Driver:
    """A device module of PyTorch, such as ``torch.cuda``, with some devices."""

    current: Any = None

    def __init__(self, devices: int) -> None:
        self.device_count = lambda: devices

    def is_available(self) -> bool:
        return True

    def set_device(self, device: object) -> None:
        self.current = device


def test_cuda_numbers_gpus_by_pci_bus_unless_set_otherwise() -> None:
    """As SLURM and NVIDIA's tools do; CUDA's default is the fastest first."""
    assert bound(FOUR, 4, LOCAL_RANK="1")["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    own = bound(FOUR, 4, LOCAL_RANK="1", CUDA_DEVICE_ORDER="FASTEST_FIRST")
    assert own["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"
    assert "CUDA_DEVICE_ORDER" not in bound(VisibleDevices("ROCR_VISIBLE_DEVICES", ("0",)), 1)


def test_an_accelerator_chosen_by_the_launcher_stays() -> None:
    alone = VisibleDevices("CUDA_VISIBLE_DEVICES", ("MIG-1",))
    assert bound(alone, 4, SLURM_LOCALID="3")["CUDA_VISIBLE_DEVICES"] == "MIG-1"


def test_a_rank_without_an_accelerator_is_rejected() -> None:
    two = VisibleDevices("ROCR_VISIBLE_DEVICES", ("4", "5"))
    with pytest.raises(PreflightError, match=r"rank 2 .* there are 2 \(ROCR_VISIBLE_DEVICES=4,5\)"):
        bound(two, 4, SLURM_LOCALID="2")


def test_amds_variable_replaces_those_that_index_its_devices() -> None:
    found = bound(
        VisibleDevices("ROCR_VISIBLE_DEVICES", ("4", "5")), 2,
        LOCAL_RANK="1", CUDA_VISIBLE_DEVICES="4,5", HIP_VISIBLE_DEVICES="4,5",
    )  # fmt: skip
    assert found["ROCR_VISIBLE_DEVICES"] == "5"
    assert not {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"} & found.keys()


STEP = {"SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "0,1"}
"""Variables that SLURM sets in a step with two generic resources gpu, of whatever vendor."""


def test_the_variable_of_the_nodes_vendor_is_used(tmp_path: Path) -> None:
    assert str(devices_of_job(STEP, tmp_path)) == "CUDA_VISIBLE_DEVICES=0,1"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kfd").touch()
    assert str(devices_of_job(STEP, tmp_path)) == "ROCR_VISIBLE_DEVICES=0,1"


@pytest.mark.parametrize(
    "environment",
    [
        {"CUDA_VISIBLE_DEVICES": "0"},  # Set by the user, outside of a job.
        {"SLURM_JOB_ID": "1"},
        {"SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "NoDevFiles"},
    ],
)
def test_a_step_without_accelerators_has_none(environment: dict[str, str]) -> None:
    assert devices_of_job(environment) is None


@pytest.mark.parametrize(
    ("vendor", "environment", "seen"),
    [
        ("NVIDIA", {}, "CUDA_VISIBLE_DEVICES=0,1"),
        ("NVIDIA", {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, "CUDA_VISIBLE_DEVICES=GPU-a,GPU-b"),
        ("AMD", {}, "ROCR_VISIBLE_DEVICES=0,1"),
        ("AMD", {"HIP_VISIBLE_DEVICES": "6,7"}, "HIP_VISIBLE_DEVICES=6,7"),
        ("Huawei", {"CUDA_VISIBLE_DEVICES": "6,7"}, "ASCEND_RT_VISIBLE_DEVICES=0,1"),
    ],
)
def test_visible_devices_keep_the_users_names(
    vendor: str, environment: dict[str, str], seen: str
) -> None:
    assert str(devices_seen(vendor, 2, environment)) == seen


LEFT, RIGHT = frozenset({0, 1, 4, 5}), frozenset({2, 3, 6, 7})
"""Two sockets of two cores with two threads each: 0 and 4 are threads of one core."""
NOWHERE: Cores = frozenset()


@pytest.mark.parametrize(
    ("near", "shares"),
    [
        ([LEFT, LEFT, RIGHT, RIGHT], [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ([LEFT, RIGHT, LEFT, RIGHT], [[0, 4], [2, 6], [1, 5], [3, 7]]),
        ([], [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ([LEFT, LEFT, RIGHT, NOWHERE], [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ([frozenset({9})] * 4, [[0, 4], [1, 5], [2, 6], [3, 7]]),  # None is available.
        ([LEFT, LEFT, LEFT, RIGHT], [[0, 5], [1], [4], [2, 3, 6, 7]]),
        ([frozenset({0})] * 4, [[0, 4], [1, 5], [2, 6], [3, 7]]),  # Too few.
    ],
)
def test_ranks_share_the_cores_near_their_accelerators(
    near: list[Cores], shares: list[list[int]]
) -> None:
    assert [share_of(range(8), rank, 4, near) for rank in range(4)] == shares


def test_the_cores_near_an_accelerator_are_read_from_the_kernel(tmp_path: Path) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:1b:00.0"
    folder.mkdir(parents=True)
    (folder / "local_cpulist").write_text("0-1,4-5\n")
    found = [
        Accelerator(
            vendor="NVIDIA", model="A", index=n, uuid=f"GPU-{n}", pci_address=f"00000000:{n}B:00.0"
        )
        for n in range(2)
    ]
    near = near_each(["1", "0", "GPU-1", "MIG-7"], found, tmp_path)
    assert near == [LEFT, NOWHERE, LEFT, NOWHERE]
