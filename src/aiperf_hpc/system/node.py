"""Description of this node and this process."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from aiperf_hpc.host.machine import BOUND
from aiperf_hpc.host.schedulers import current, job_variable
from aiperf_hpc.system.accelerators import find_accelerators, pci_accelerators
from aiperf_hpc.system.description import Job, NodeDescription, ProcessDescription, RankDescription
from aiperf_hpc.system.kernel import (
    disks,
    file_systems,
    memory,
    network_ports,
    operating_system,
    processors,
)
from aiperf_hpc.system.software import arithmetic, installed, loaded, recorded_variables
from aiperf_hpc.system.tools import ROOT, Probe


def describe_rank(folders: Mapping[str, Path], *, with_node: bool = True) -> RankDescription:
    """Return the description of this process.

    Args:
        folders: folders of the run, by use.
        with_node: whether to include the description of the node.
    """
    return RankDescription(
        host=socket.gethostname(),
        process=describe_process(),
        node=describe_node(folders) if with_node else None,
    )


def describe_node(folders: Mapping[str, Path], root: Path = ROOT) -> NodeDescription:
    """Return the description of this node; values that the kernel does not provide are absent.

    Args:
        folders: folders whose file systems are described, by use.
        root: parent folder of ``/proc`` and ``/sys``.
    """
    probe = Probe(OSError, ValueError, LookupError)
    read = probe.read
    found = find_accelerators()
    versions, missing = installed(root)
    return NodeDescription(
        processors=read("processors", lambda: processors(root)),
        memory=read("memory", lambda: memory(root)),
        operating_system=read("operating_system", lambda: operating_system(root)),
        accelerators=found.accelerators,
        pci_accelerators=read("pci_accelerators", lambda: pci_accelerators(root)),
        network=read("network", lambda: network_ports(root)) or (),
        file_systems=read("file_systems", lambda: file_systems(folders, root)) or (),
        disks=read("disks", lambda: tuple(disks(root))) or (),
        software=versions,
        absent=probe.absent | found.absent | missing,
    )


def describe_process(environment: Mapping[str, str] = os.environ) -> ProcessDescription:
    """Return the resources, loaded libraries and environment of this process."""
    probe = Probe(OSError, ValueError, AttributeError, RuntimeError, TypeError)
    libraries = probe.read("libraries", loaded)
    return ProcessDescription(
        cores=tuple(sorted(os.sched_getaffinity(0))),
        accelerator=environment.get(BOUND),
        libraries=libraries or {},
        arithmetic=probe.read("arithmetic", arithmetic) or {},
        job=job_of(environment),
        environment=recorded_variables(environment),
        absent=probe.absent,
    )


def job_of(environment: Mapping[str, str]) -> Job | None:
    """Return the scheduler's job from its environment variables, or None outside a job."""
    scheduler = current(environment)
    if scheduler is None or not environment[scheduler.variables["id"]]:
        return None
    told = {
        field: environment[variable]
        for field, variable in scheduler.variables.items()
        if field in Job.model_fields and variable in environment
    }
    count = told.pop("node_count", "")
    gpus = told.pop("gpus", "") or job_variable("node_gpus", environment)
    return Job(
        scheduler=scheduler.name,
        node_count=int(count) if count.isdecimal() else None,
        gpus=gpus,
        **told,
    )
