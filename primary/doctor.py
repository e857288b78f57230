"""``aiperf doctor``: what this machine has, what is missing, and what installs it."""

from __future__ import annotations

import ctypes.util
import os
import platform
import shutil
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import psutil

from aiperf_hpc import __version__
from aiperf_hpc.errors import RunDirectoryError, reason_of
from aiperf_hpc.extras import COLLECTIVES, ENGINES, NNI, SIMULATION, pip_install
from aiperf_hpc.formatting import size
from aiperf_hpc.host.machine import available_bytes
from aiperf_hpc.host.schedulers import SCHEDULERS
from aiperf_hpc.integrity.release import FILES, changes, package_digest
from aiperf_hpc.ops_counter.divisions.arithmetic import environment_rule
from aiperf_hpc.ops_counter.divisions.release import release_rule
from aiperf_hpc.primary import cuda_packages
from aiperf_hpc.primary.check import CONTROLLER, Check, output_of, package_check
from aiperf_hpc.primary.launchers.base import find_mpirun
from aiperf_hpc.primary.launchers.registry import load
from aiperf_hpc.run.storage import (
    file_system_of,
    free_bytes,
    nearest_existing,
    require_writable,
)
from aiperf_hpc.system.accelerators import VENDORS
from aiperf_hpc.system.accelerators.nvidia import cuda_version
from aiperf_hpc.system.accelerators.source import Asker
from aiperf_hpc.system.software import recorded_variables
from aiperf_hpc.system.tools import AbsentError
from aiperf_hpc.telemetry.energy import rapl_zones

NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "lustre", "beegfs", "gpfs", "ceph", "cifs", "9p", "fuse.")


OPEN_RAPL = "as root: chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj, and those below them"

OWN, SCRIPT_BYTES = b"aiperf_hpc", 65_536
"""What a program that starts this package has in it, and how far into it that is looked for."""


CPU_BUILDS = "the installed frameworks are builds for CPUs"
CUDA = "CUDA"
"""The area of NVIDIA's packages and driver."""
APART = "create a new virtual environment for each of [cuda] and [torch]"


PACKAGES = (
    ("framework", "tensorflow", ENGINES["tensorflow"]),
    ("framework", "torch", ENGINES["torch"]),
    ("collective", "mpi4py", COLLECTIVES["mpi"]),
    ("collective", "horovod", COLLECTIVES["horovod"]),
    ("simulation", "greenlet", SIMULATION),
    ("NNI", "nni", NNI),
)
OPTIONAL = {
    "greenlet": "for aiperf simulate",
    "nni": "for NNI's experiments, with our search as the tuner; no run needs it",
}
"""What is needed for one thing that many never do."""


def examine(folder: Path) -> list[Check]:
    """Look at this machine, and at ``folder`` as a place for runs."""
    return [
        *_machine(),
        _command(),
        *_accelerators(),
        *_cuda(),
        *energy_checks(),
        *_packages(),
        *_official(),
        *(check for each in SCHEDULERS for check in load(each).checks()),
        *examine_storage(folder),
    ]


def readiness(checks: Sequence[Check]) -> str:
    """Return for which runs this machine is ready, what the others lack, and what to do first."""
    if missing := [check for check in checks if check.required and not check.found]:
        return f"Not ready for any run ({_lack(missing[0])}). First: {missing[0].remedy}."
    lacks, silent = {"local runs": ""}, list[Check]()
    for scheduler in SCHEDULERS:
        needs = load(scheduler).needs
        needed = [c for c in checks if c.area == scheduler.title and c.name in needs]
        unmet = [check for check in needed if not check.found]
        absent = "" if needed else "no client found"
        lacks[scheduler.title] = _lack(unmet[0]) if unmet else absent
        silent += [check for check in unmet[:1] if check.name == CONTROLLER]
    lacks["GPUs"] = _lack_for_accelerators(checks)
    ready = " and ".join(", ".join(name for name in lacks if not lacks[name]).rsplit(", ", 1))
    others = " or ".join(f"{name} ({why})" for name, why in lacks.items() if why)
    first = "Start with `aiperf start --nodes 1 --hours 0.05`"
    if lacks["GPUs"] == CPU_BUILDS:
        first = f"First: {pip_install('cuda')}, or PyTorch's build for your accelerator"
    elif broken := _broken_cuda(checks):
        first = f"First: {broken.remedy}"
    elif silent:
        first = f"First: {silent[0].remedy}"
    return f"Ready for {ready}{f'; not for {others}' if others else ''}. {first}."


def _lack(check: Check) -> str:
    return f"{check.name}: {check.detail}"


def _lack_for_accelerators(checks: Iterable[Check]) -> str:
    """Return what a run on this machine's accelerators lacks; nothing if it may be possible."""
    found = [check for check in checks if check.found]
    if not any(check.area == "accelerator" for check in found):
        return "no accelerator found"
    frameworks = [c.detail for c in found if c.area == "framework" and c.name in ENGINES]
    if all("cpu" in detail for detail in frameworks):
        return CPU_BUILDS
    broken = _broken_cuda(checks)
    return _lack(broken) if broken is not None else ""


def _broken_cuda(checks: Iterable[Check]) -> Check | None:
    return next((check for check in checks if check.area == CUDA and not check.found), None)


def _machine() -> Iterator[Check]:
    cores = len(os.sched_getaffinity(0))
    memory = psutil.virtual_memory()
    detail = f"{cores} usable of {os.cpu_count()}; {platform.machine()}"
    yield Check(area="machine", name="cores", found=True, detail=detail)
    detail = f"{size(available_bytes())} available of {size(memory.total)}"
    yield Check(area="machine", name="memory", found=True, detail=detail)
    version = platform.python_version_tuple()
    fits = (3, 11) <= (int(version[0]), int(version[1])) < (3, 13)
    yield Check(
        area="machine",
        name="python",
        found=fits,
        detail=platform.python_version(),
        remedy="" if fits else "install Python 3.11 or 3.12",
        required=True,
    )


def _command() -> Check:
    """Look at the ``aiperf`` that a shell would start: another package has one of that name."""
    where = shutil.which("aiperf")
    if where is None:
        remedy = f"put {sysconfig.get_path('scripts')} on the PATH"
        return Check(
            area="command", name="aiperf", found=False, detail="not on the PATH", remedy=remedy
        )
    try:
        ours = OWN in Path(where).read_bytes()[:SCRIPT_BYTES]
        detail = where if ours else f"{where} is another program of that name"
    except OSError as error:
        ours, detail = False, f"{where} cannot be read: {reason_of(error)}"
    remedy = "" if ours else "write aiperf-hpc in place of aiperf: the same commands"
    return Check(area="command", name="aiperf", found=ours, detail=detail, remedy=remedy)


def _accelerators() -> Iterator[Check]:
    tools = {
        "NVIDIA": ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
        "AMD": ["rocm-smi", "--showproductname", "--csv"],
        "Ascend": ["npu-smi", "info", "-l"],
    }
    for maker, command in tools.items():
        output = output_of(command)
        if output is None:
            yield Check(area="accelerator", name=maker, found=False, detail=f"no {command[0]}")
        else:
            devices = "; ".join(line.strip() for line in output.splitlines() if line.strip())
            yield Check(area="accelerator", name=maker, found=bool(devices), detail=devices)


def _cuda() -> Iterator[Check]:
    """Look at NVIDIA's packages: whether they overwrote each other, and whether the driver fits."""
    libraries = cuda_packages.installed_libraries()
    needed = cuda_packages.newest(libraries)
    if needed is None:
        return
    overwritten = cuda_packages.conflict(libraries)
    yield Check(
        area=CUDA,
        name="packages",
        found=overwritten is None,
        detail=overwritten or f"{len(libraries)} libraries of CUDA {needed}",
        remedy=APART if overwritten else "",
    )
    try:
        supported = cuda_version()
    except AbsentError:
        return  # There is no driver here; the accelerators' rows say so.
    fits = int(supported.partition(".")[0]) >= needed
    yield Check(
        area=CUDA,
        name="driver",
        found=fits,
        detail=f"for CUDA {supported}; the installed packages are for CUDA {needed}",
        remedy="" if fits else f"install {cuda_packages.driver_for(needed)}; README, Frameworks",
    )


def energy_checks() -> Iterator[Check]:
    """Look at what tells the energy of this node: a run records it, and says what is missing."""
    asker = Asker((OSError, ValueError))
    zones = asker.ask("RAPL", rapl_zones)
    yield Check(
        area="energy",
        name="processors",
        found=zones is not None,
        detail=asker.absent.get("RAPL", "") or f"RAPL: {', '.join(z.name for z in zones or ())}",
        remedy=OPEN_RAPL if "Permission denied" in asker.absent.get("RAPL", "") else "",
    )
    for vendor in VENDORS:
        try:
            with vendor.source() as tool:
                told = [r for r in tool.read() if r.watts is not None or r.millijoules is not None]
                detail = f"{tool.tool}: {len(told)} of {len(tool.names)}"
                whole = len(told) == len(tool.names)
        except AbsentError:
            continue  # There are none of this vendor, or its tool is named among accelerators.
        yield Check(area="energy", name=f"{vendor.name} accelerators", found=whole, detail=detail)


def _packages() -> Iterator[Check]:
    for area, name, package in PACKAGES:
        yield package_check(area, name, package, OPTIONAL.get(name, ""))
    yield _engines()
    mpi = find_mpirun() or ctypes.util.find_library("mpi")
    yield Check(
        area="collective",
        name="MPI library",
        found=bool(mpi),
        detail=mpi or "none",
        remedy="" if mpi else f"{pip_install('mpi')}, or your site's MPI",
    )


def _engines() -> Check:
    """Look for one of the engines that train, which are named as their packages."""
    found = [name for name, package in ENGINES.items() if package.installed]
    return Check(
        area="framework",
        name="an engine",
        found=bool(found),
        detail=", ".join(f"engine.name={name}" for name in found) or "none",
        remedy="" if found else f"{ENGINES['tensorflow'].remedy} or [torch]",
        required=True,
    )


def _official() -> Iterator[Check]:
    """Look at the code and the variables: official results need a release, and what it states."""
    versions = {"aiperf-hpc": __version__, FILES: package_digest()}
    for check in (
        release_rule(versions, changes()),
        environment_rule([recorded_variables(os.environ)], "fp32"),
    ):
        yield Check(
            area="official results",
            name=check.rule,
            found=check.passed,
            detail=check.value,
            remedy="; ".join(check.reasons),
        )


def examine_storage(folder: Path) -> Iterator[Check]:
    """Look at ``folder`` as a place for runs."""
    place = nearest_existing(folder)
    kind, mount = file_system_of(place)
    shared = kind.startswith(NETWORK_FILE_SYSTEMS)
    try:
        require_writable(folder)
    except RunDirectoryError as error:
        why, _, remedy = str(error).rpartition("; ")
    else:
        room = f"{size(free_bytes(place))} free"
        why, remedy = f"{place}: {kind} at {mount}, {room}", ""
    yield Check(
        area="storage",
        name="writable",
        found=not remedy,
        detail=why,
        remedy=remedy,
        required=True,
    )
    yield Check(
        area="storage",
        name="shared",
        found=shared,
        detail=f"{kind} is {'a' if shared else 'no'} network file system",
        remedy="" if shared else "needed for several nodes only: a folder on NFS or the like",
    )
