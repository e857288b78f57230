"""Which accelerator a rank is bound to, by what its environment says."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiperf_hpc.config import ReplicaConfig
from aiperf_hpc.errors import PreflightError
from aiperf_hpc.replica.parallel.binding import LOCAL_RANKS, bind, slurm_devices
from aiperf_hpc.visible_devices import BOUND, VisibleDevices, devices_seen

FOUR = VisibleDevices("CUDA_VISIBLE_DEVICES", ("0", "1", "2", "3"))


def bound(given: VisibleDevices, ranks: int, **environment: str) -> dict[str, str]:
    bind(given, ReplicaConfig(ranks_per_node=ranks), environment)
    return environment


@pytest.mark.parametrize("variable", LOCAL_RANKS)
def test_each_rank_has_the_one_of_its_number(variable: str) -> None:
    found = bound(FOUR, 4, **{variable: "2"})
    assert found["CUDA_VISIBLE_DEVICES"] == "2"
    assert found[BOUND] == "CUDA_VISIBLE_DEVICES=2"


def test_eight_replicas_of_one_rank_have_eight() -> None:
    own = [f"CUDA_VISIBLE_DEVICES={number}" for number in range(8)]
    # Whatever job or step the machine's own shell is in.
    found = [bound(VisibleDevices.parse(each), 1, SLURM_LOCALID="5")[BOUND] for each in own]
    assert found == own


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
    assert str(slurm_devices(STEP, tmp_path)) == "CUDA_VISIBLE_DEVICES=0,1"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kfd").touch()
    assert str(slurm_devices(STEP, tmp_path)) == "ROCR_VISIBLE_DEVICES=0,1"


@pytest.mark.parametrize(
    "environment",
    [
        {"CUDA_VISIBLE_DEVICES": "0"},  # A user's own, outside of a job.
        {"SLURM_JOB_ID": "1"},
        {"SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "NoDevFiles"},
    ],
)
def test_where_slurm_gave_none_there_is_none(environment: dict[str, str]) -> None:
    assert slurm_devices(environment) is None


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
