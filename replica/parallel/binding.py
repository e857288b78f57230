"""Binding a rank to one accelerator, and to the cores near it.

The visible-devices variable of the framework hides all other accelerators. The scheduler's own
binding would also hide them from NCCL and RCCL, which copy between them directly.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path

from aiperf_hpc.config import ReplicaConfig
from aiperf_hpc.errors import PreflightError
from aiperf_hpc.host.machine import BOUND, NONE, VARIABLES, VisibleDevices
from aiperf_hpc.host.schedulers import SCHEDULERS, current, node_name
from aiperf_hpc.replica.parallel.collectives import Collective
from aiperf_hpc.system.accelerators import amd, nvidia
from aiperf_hpc.system.description import Accelerator
from aiperf_hpc.system.tools import ROOT, AbsentError, numbers_in, text_or_none

LOCAL_RANKS = (
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "HOROVOD_LOCAL_RANK",
    "LOCAL_RANK",
    "MPI_LOCALRANKID",
    *(each.variables["local_rank"] for each in SCHEDULERS if "local_rank" in each.variables),
)
"""Variables with a process's local rank: those of Open MPI's mpirun, Horovod, torchrun (and
``start_ranks.py``), MPICH's mpirun and, last because the others may run within its step, the
scheduler."""

_ORDER, _BY_BUS = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
"""Setting that makes CUDA number GPUs by PCI bus, as schedulers and NVIDIA's tools do. By default,
CUDA numbers the fastest first."""
Cores = frozenset[int]
"""Logical CPUs."""


def bind(
    given: VisibleDevices, replica: ReplicaConfig, environment: MutableMapping[str, str]
) -> None:
    """Make one accelerator visible to this process.

    Args:
        given: accelerators of the replica on this node; the launcher may have chosen one already.
        replica: configuration with the number of ranks.
        environment: environment of this process; changed to show one accelerator.

    Raises:
        PreflightError: there are fewer accelerators than ranks.
    """
    number = 0 if replica.ranks == 1 else local_rank(environment)
    if len(given.names) > 1 and number >= len(given.names):
        raise PreflightError(
            f"node {node_name()}: rank {number} of this node has no accelerator: there are "
            f"{len(given.names)} ({given}); request as many as replica.ranks_per_node, "
            f"{replica.ranks_per_node}"
        )
    if given.variable == VARIABLES["AMD"][0]:
        # These variables index the accelerators that the first one leaves visible.
        for name in VARIABLES["AMD"][1:]:
            environment.pop(name, None)
    if given.variable == VARIABLES["NVIDIA"][0]:
        environment.setdefault(_ORDER, _BY_BUS)
    own = VisibleDevices(given.variable, (given.names[number % len(given.names)],))
    environment[own.variable] = own.names[0]
    environment[BOUND] = str(own)


def local_rank(environment: Mapping[str, str]) -> int:
    """Return the local rank of this process; 0 if no variable is set."""
    values = (environment.get(name) for name in LOCAL_RANKS)
    return next((int(value) for value in values if value is not None), 0)


def devices_of_job(environment: Mapping[str, str], root: Path = ROOT) -> VisibleDevices | None:
    """Return the accelerators that the scheduler allocated to this step on this node, or None.

    The scheduler sets the variables of several vendors at once; AMD's is used if its kernel driver
    is loaded.
    """
    if current(environment) is None:
        return None
    vendors = ("AMD", "NVIDIA") if (root / "dev/kfd").exists() else ("NVIDIA", "AMD")
    names = [name for vendor in (*vendors, "Huawei") for name in VARIABLES[vendor][:1]]
    given = next((name for name in names if environment.get(name, "") not in NONE), None)
    return None if given is None else VisibleDevices.parse(f"{given}={environment[given]}")


def share_cores(collective: Collective, near: Sequence[Cores] = ()) -> None:
    """Bind this rank to its part of the replica's cores on this host.

    Args:
        collective: collective of all ranks.
        near: cores near the accelerator of each rank of this host; empty if unknown.
    """
    cores = sorted(os.sched_getaffinity(0))
    if 1 < collective.local_size <= len(cores):
        own = share_of(cores, collective.local_rank, collective.local_size, near)
        os.sched_setaffinity(0, own)


def share_of(cores: Sequence[int], rank: int, ranks: int, near: Sequence[Cores]) -> list[int]:
    """Return the cores of one rank: every ``ranks``-th core, with all its hardware threads.

    Ranks whose accelerators are near the same cores share these cores. If the nearest cores of any
    rank are unknown or too few, all ranks share all cores.
    """
    usable = [[core for core in cores if core in each] for each in near[:ranks]]
    if len(usable) == ranks and all(usable.count(each) <= len(each) for each in usable):
        own = usable[rank]
        return own[usable[:rank].count(own) :: usable.count(own)]
    return list(cores[rank::ranks])


def near_cores(devices: VisibleDevices) -> list[Cores]:
    """Return the cores near each accelerator, from the vendor's tool and the kernel."""
    for vendor in (nvidia, amd):  # Huawei's tool needs one second per chip.
        if devices.variable == VARIABLES[vendor.VENDOR][0]:
            with suppress(AbsentError):
                return near_each(devices.names, vendor.accelerators())
    return []


def near_each(
    names: Iterable[str], accelerators: Sequence[Accelerator], root: Path = ROOT
) -> list[Cores]:
    """Return the cores near each accelerator.

    Args:
        names: indices or unique identifiers.
        accelerators: all accelerators of the node.
        root: folder that contains ``sys``.
    """
    addresses = {str(each.index): each.pci_address for each in accelerators}
    addresses |= {each.uuid: each.pci_address for each in accelerators if each.uuid is not None}
    return [_near(addresses.get(name), root) for name in names]


def _near(address: str | None, root: Path) -> Cores:
    if address is None:
        return frozenset()
    # NVML writes the PCI domain with eight digits, the kernel with four.
    domain, _, rest = address.lower().partition(":")
    folder = root / "sys/bus/pci/devices" / f"{domain[-4:]}:{rest}"
    return frozenset(numbers_in(text_or_none(folder / "local_cpulist") or ""))
