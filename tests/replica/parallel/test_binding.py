"""Which accelerator a rank is bound to, by what its environment says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.run_manifest import run_manifest

from aiperf_hpc.config import ReplicaConfig, validate
from aiperf_hpc.errors import PreflightError
from aiperf_hpc.host.machine import BOUND, VisibleDevices, devices_seen
from aiperf_hpc.primary.launchers.base import local_commands
from aiperf_hpc.primary.launchers.ranks import Machine, settle_here
from aiperf_hpc.replica.parallel.binding import LOCAL_RANKS, bind, devices_of_job, local_rank
from aiperf_hpc.run.paths import RunPaths

FOUR = VisibleDevices("CUDA_VISIBLE_DEVICES", ("0", "1", "2", "3"))


def bound(given: VisibleDevices, ranks: int, **environment: str) -> dict[str, str]:
    bind(given, ReplicaConfig(ranks_per_node=ranks), environment)
    return environment


@pytest.mark.parametrize("variable", LOCAL_RANKS)
def test_each_rank_has_the_one_of_its_number(variable: str) -> None:
    found = bound(FOUR, 4, **{variable: "2"})
    assert found["CUDA_VISIBLE_DEVICES"] == "2"
    assert found[BOUND] == "CUDA_VISIBLE_DEVICES=2"


def test_each_of_eight_replicas_computes_on_an_accelerator_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From what the primary deals out to PyTorch's device, on a machine that is made up."""
    torch = pytest.importorskip("torch")
    from aiperf_hpc.replica.engines.torch.device import choose_device

    config = validate({"dataset": {"name": "digits"}, "engine": {"name": "torch"}}, "test")
    seen = VisibleDevices("CUDA_VISIBLE_DEVICES", tuple(map(str, range(8))))
    settled = settle_here(config, 8, Machine(lambda: ["Example A"] * 8, lambda _: seen))
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


@pytest.mark.parametrize("rank", range(8))
def test_a_rank_that_is_not_bound_computes_on_the_device_of_its_number(
    monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    torch = pytest.importorskip("torch")
    from aiperf_hpc.replica.engines.torch.device import choose_device

    module = Driver(8)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: module)
    monkeypatch.setattr(os, "environ", {})
    assert choose_device("cuda", rank) == module.current == torch.device("cuda", rank)


class Driver:
    """A module of PyTorch's like ``torch.cuda``, of some devices."""

    current: Any = None

    def __init__(self, devices: int) -> None:
        self.device_count = lambda: devices

    def is_available(self) -> bool:
        return True

    def set_device(self, device: object) -> None:
        self.current = device


def test_cuda_numbers_gpus_as_slurm_and_nvidias_tools_do() -> None:
    """By itself the fastest one is its first, which on a node of several kinds is another one."""
    assert bound(FOUR, 4, LOCAL_RANK="1")["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    asked = bound(FOUR, 4, LOCAL_RANK="1", CUDA_DEVICE_ORDER="FASTEST_FIRST")
    assert asked["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"
    assert "CUDA_DEVICE_ORDER" not in bound(VisibleDevices("ROCR_VISIBLE_DEVICES", ("0",)), 1)


def test_what_was_chosen_already_stays() -> None:
    alone = VisibleDevices("CUDA_VISIBLE_DEVICES", ("MIG-1",))
    assert bound(alone, 4, SLURM_LOCALID="3")["CUDA_VISIBLE_DEVICES"] == "MIG-1"


def test_a_rank_without_one_is_refused() -> None:
    two = VisibleDevices("ROCR_VISIBLE_DEVICES", ("4", "5"))
    with pytest.raises(PreflightError, match=r"rank 2 .* there are 2 \(ROCR_VISIBLE_DEVICES=4,5\)"):
        bound(two, 4, SLURM_LOCALID="2")


def test_amds_own_variable_goes_before_those_that_number_what_it_leaves() -> None:
    found = bound(
        VisibleDevices("ROCR_VISIBLE_DEVICES", ("4", "5")), 2,
        LOCAL_RANK="1", CUDA_VISIBLE_DEVICES="4,5", HIP_VISIBLE_DEVICES="4,5",
    )  # fmt: skip
    assert found["ROCR_VISIBLE_DEVICES"] == "5"
    assert not {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"} & found.keys()


STEP = {"SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "0,1"}
"""What SLURM sets in a step with two generic resources of the name gpu, whoever made them."""


def test_what_slurm_gave_is_the_vendors(tmp_path: Path) -> None:
    assert str(devices_of_job(STEP, tmp_path)) == "CUDA_VISIBLE_DEVICES=0,1"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kfd").touch()
    assert str(devices_of_job(STEP, tmp_path)) == "ROCR_VISIBLE_DEVICES=0,1"


@pytest.mark.parametrize(
    "environment",
    [
        {"CUDA_VISIBLE_DEVICES": "0"},  # A user's own, outside of a job.
        {"SLURM_JOB_ID": "1"},
        {"SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "NoDevFiles"},
    ],
)
def test_where_slurm_gave_none_there_is_none(environment: dict[str, str]) -> None:
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
def test_what_an_engine_counts_has_the_names_that_the_user_gave(
    vendor: str, environment: dict[str, str], seen: str
) -> None:
    assert str(devices_seen(vendor, 2, environment)) == seen
