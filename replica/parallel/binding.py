"""Binding a rank to one accelerator: it sees that one, and no other, before anything looks.

By the variable that its framework reads, and not by the scheduler's binding: that would hide a
rank's accelerator from its neighbours, which NCCL and RCCL copy to directly.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from pathlib import Path

from aiperf_hpc.config import ReplicaConfig
from aiperf_hpc.errors import PreflightError
from aiperf_hpc.host.schedulers import SCHEDULERS, current, node_name
from aiperf_hpc.host.visible_devices import BOUND, NONE, VARIABLES, VisibleDevices
from aiperf_hpc.system.tools import ROOT

LOCAL_RANKS = (
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "HOROVOD_LOCAL_RANK",
    "LOCAL_RANK",
    "MPI_LOCALRANKID",
    *(each.variables["local_rank"] for each in SCHEDULERS if "local_rank" in each.variables),
)
"""What tells a process its number among the ranks of its replica on this node: variables of Open
MPI's mpirun, Horovod, torchrun (and ``start_ranks.py``), MPICH's mpirun and, last because one of
the others may be within its step, the scheduler."""

_ORDER, _BY_BUS = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
"""How CUDA numbers GPUs: by itself the fastest first, where schedulers and NVIDIA's tools go by the
bus, by which cores and readings are found."""


def bind(
    given: VisibleDevices, replica: ReplicaConfig, environment: MutableMapping[str, str]
) -> None:
    """Leave this process one accelerator.

    Args:
        given: those that its replica has on this node; one alone may have been chosen for it by
            whoever started it.
        replica: of how many ranks.
        environment: of this process, in which the others are taken out.

    Raises:
        PreflightError: there are fewer than ranks.
    """
    number = 0 if replica.ranks == 1 else local_rank(environment)
    if len(given.names) > 1 and number >= len(given.names):
        raise PreflightError(
            f"node {node_name()}: rank {number} of this node has no accelerator: there are "
            f"{len(given.names)} ({given}); ask for as many as replica.ranks_per_node, "
            f"{replica.ranks_per_node}"
        )
    if given.variable == VARIABLES["AMD"][0]:
        # What the others number is what this one leaves.
        for name in VARIABLES["AMD"][1:]:
            environment.pop(name, None)
    if given.variable == VARIABLES["NVIDIA"][0]:
        environment.setdefault(_ORDER, _BY_BUS)
    own = VisibleDevices(given.variable, (given.names[number % len(given.names)],))
    environment[own.variable] = own.names[0]
    environment[BOUND] = str(own)


def local_rank(environment: Mapping[str, str]) -> int:
    """Return which of the ranks on this node this process is; 0 where nothing tells."""
    told = (environment.get(name) for name in LOCAL_RANKS)
    return next((int(value) for value in told if value is not None), 0)


def devices_of_job(environment: Mapping[str, str], root: Path = ROOT) -> VisibleDevices | None:
    """Return the accelerators that the scheduler gave this step on this node; None for none.

    It names them by the variables of several vendors, whichever they are: AMD's own is meant where
    the kernel has AMD's driver.
    """
    if current(environment) is None:
        return None
    vendors = ("AMD", "NVIDIA") if (root / "dev/kfd").exists() else ("NVIDIA", "AMD")
    names = [name for vendor in (*vendors, "Huawei") for name in VARIABLES[vendor][:1]]
    given = next((name for name in names if environment.get(name, "") not in NONE), None)
    return None if given is None else VisibleDevices.parse(f"{given}={environment[given]}")
