"""Which cores a rank of several on one node computes on: those near its accelerator, if known."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from aiperf_hpc.host.visible_devices import VARIABLES, VisibleDevices
from aiperf_hpc.replica.parallel.collectives.base import Collective
from aiperf_hpc.system.accelerators import amd, nvidia
from aiperf_hpc.system.description import Accelerator
from aiperf_hpc.system.tools import ROOT, AbsentError, cpus_of, text_or_none

Cores = frozenset[int]
"""Logical CPUs."""


def share_cores(collective: Collective, near: Sequence[Cores] = ()) -> None:
    """Leave the other ranks of this host their share of the cores that the replica has.

    Args:
        collective: of all ranks.
        near: those near the accelerator of each rank of this host; none where nobody tells.
    """
    cores = sorted(os.sched_getaffinity(0))
    if 1 < collective.local_size <= len(cores):
        own = share_of(cores, collective.local_rank, collective.local_size, near)
        os.sched_setaffinity(0, own)


def share_of(cores: Sequence[int], rank: int, ranks: int, near: Sequence[Cores]) -> list[int]:
    """Return the cores of one of so many ranks: every so-many-th one, so that both halves of a core
    that runs two threads are the same rank's.

    Ranks whose accelerators are near the same cores share those. Where it is not known of each, or
    is too few for some, all ranks share all cores.
    """
    usable = [[core for core in cores if core in each] for each in near[:ranks]]
    if len(usable) == ranks and all(usable.count(each) <= len(each) for each in usable):
        own = usable[rank]
        return own[usable[:rank].count(own) :: usable.count(own)]
    return list(cores[rank::ranks])


def near_cores(devices: VisibleDevices) -> list[Cores]:
    """Return the cores near each accelerator, as its vendor's tool and the kernel tell."""
    for vendor in (nvidia, amd):  # Huawei's tool takes a second for each chip.
        if devices.variable == VARIABLES[vendor.VENDOR][0]:
            with suppress(AbsentError):
                return near_each(devices.names, vendor.accelerators())
    return []


def near_each(
    names: Iterable[str], accelerators: Sequence[Accelerator], root: Path = ROOT
) -> list[Cores]:
    """Return the cores near each accelerator.

    Args:
        names: numbers or unique identifiers.
        accelerators: all of the node.
        root: above ``/sys``.
    """
    addresses = {str(each.index): each.pci_address for each in accelerators}
    addresses |= {each.uuid: each.pci_address for each in accelerators if each.uuid is not None}
    return [_near(addresses.get(name), root) for name in names]


def _near(address: str | None, root: Path) -> Cores:
    if address is None:
        return frozenset()
    # NVML writes eight digits of the domain, where the kernel has four.
    domain, _, rest = address.lower().partition(":")
    folder = root / "sys/bus/pci/devices" / f"{domain[-4:]}:{rest}"
    return frozenset(cpus_of(text_or_none(folder / "local_cpulist") or ""))
