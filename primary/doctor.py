"""``aiperf doctor``: check this machine's software and hardware, with remedies."""

from __future__ import annotations

import ctypes.util
import os
import platform
import re
import shutil
import sysconfig
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

import psutil

from aiperf_hpc import __version__
from aiperf_hpc.errors import RunDirectoryError, reason_of
from aiperf_hpc.extras import COLLECTIVES, ENGINES, NNI, SIMULATION, pip_install
from aiperf_hpc.formatting import size
from aiperf_hpc.host.machine import available_bytes
from aiperf_hpc.host.schedulers import SCHEDULERS
from aiperf_hpc.integrity.release import FILES, changes, package_digest
from aiperf_hpc.primary.doctor_rows import CONTROLLER, Check, check, output_of, package_check
from aiperf_hpc.primary.launchers.backend import load
from aiperf_hpc.primary.launchers.base import find_mpirun
from aiperf_hpc.rules.registry import ENVIRONMENT, RELEASE
from aiperf_hpc.rules.validity.precision import Environment
from aiperf_hpc.rules.validity.software import code_here
from aiperf_hpc.run.storage import free_bytes, nearest_existing, require_writable
from aiperf_hpc.system.accelerators import VENDORS
from aiperf_hpc.system.accelerators.nvidia import cuda_version
from aiperf_hpc.system.accelerators.source import RepeatedProbe
from aiperf_hpc.system.kernel import known_mount_of
from aiperf_hpc.system.software import recorded_variables
from aiperf_hpc.system.tools import AbsentError
from aiperf_hpc.telemetry.energy import rapl_zones

NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "lustre", "beegfs", "gpfs", "ceph", "cifs", "9p", "fuse.")


OPEN_RAPL = "as root: chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj, and those below them"

OWN, SCRIPT_BYTES = b"aiperf_hpc", 65_536
"""Text in a program that starts this package, and the number of bytes searched for it."""


CPU_BUILDS = "the installed frameworks are CPU builds"
CUDA = "CUDA"
"""Area of the rows about NVIDIA's packages and driver.

The packages' names end in the major version of CUDA, but they install into folders without it:
nvidia-cudnn-cu12 and nvidia-cudnn-cu13 both write nvidia/cudnn, and the later one overwrites it.
"""
LEAST_DRIVERS: Final[Mapping[int, str]] = {12: "525", 13: "580"}
"""Oldest driver branch for each major version of CUDA [NVIDIA, CUDA Compatibility, table 1 of
Minor Version Compatibility]."""
_NAME: Final = re.compile(r"nvidia-(?P<library>.+)-cu(?P<cuda>\d+)")

Libraries = Mapping[str, Sequence[int]]
"""Major versions of CUDA for which each library is installed, by its folder's name."""
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
    "nni": "for NNI experiments with this search as the tuner; no run needs it",
}
"""Checks that only one optional feature needs."""


def examine(folder: Path) -> list[Check]:
    """Check this machine, and ``folder`` as a place for runs."""
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
    """Return the runs that are possible here, the requirements of others, and the first remedy."""
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
    """Return the missing requirements of runs on this machine's accelerators, empty if none."""
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
    cores = f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}; {platform.machine()}"
    yield check("machine", "cores", True, cores)
    memory = f"{size(available_bytes())} available of {size(psutil.virtual_memory().total)}"
    yield check("machine", "memory", True, memory)
    version = platform.python_version_tuple()
    fits = (3, 11) <= (int(version[0]), int(version[1])) < (3, 13)
    remedy = "install Python 3.11 or 3.12"
    yield check("machine", "python", fits, platform.python_version(), remedy, required=True)


def _command() -> Check:
    """Check the ``aiperf`` that a shell would start: another package has a program of that name."""
    where = shutil.which("aiperf")
    if where is None:
        remedy = f"put {sysconfig.get_path('scripts')} on the PATH"
        return check("command", "aiperf", False, "not on the PATH", remedy)
    try:
        ours = OWN in Path(where).read_bytes()[:SCRIPT_BYTES]
        detail = where if ours else f"{where} is another program of that name"
    except OSError as error:
        ours, detail = False, f"{where} cannot be read: {reason_of(error)}"
    remedy = "use aiperf-hpc instead of aiperf"
    return check("command", "aiperf", ours, detail, remedy)


def _accelerators() -> Iterator[Check]:
    tools = {
        "NVIDIA": ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
        "AMD": ["rocm-smi", "--showproductname", "--csv"],
        "Ascend": ["npu-smi", "info", "-l"],
    }
    for vendor, command in tools.items():
        output = output_of(command)
        if output is None:
            yield check("accelerator", vendor, False, f"no {command[0]}")
        else:
            devices = "; ".join(line.strip() for line in output.splitlines() if line.strip())
            yield check("accelerator", vendor, bool(devices), devices)


def _cuda() -> Iterator[Check]:
    """Check whether NVIDIA's packages overwrote each other, and whether the driver fits."""
    libraries = installed_libraries()
    needed = max((version for versions in libraries.values() for version in versions), default=None)
    if needed is None:
        return
    overwritten = conflict(libraries)
    detail = overwritten or f"{len(libraries)} libraries of CUDA {needed}"
    yield check(CUDA, "packages", overwritten is None, detail, APART)
    try:
        supported = cuda_version()
    except AbsentError:
        return  # There is no driver here; the accelerators' rows say so.
    fits = int(supported.partition(".")[0]) >= needed
    detail = f"for CUDA {supported}; the installed packages are for CUDA {needed}"
    yield check(CUDA, "driver", fits, detail, f"install {driver_for(needed)}; README, Frameworks")


def installed_libraries() -> Libraries:
    """Return the CUDA libraries that this environment's packages have installed."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for distribution in metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        if matched := _NAME.fullmatch(name):
            found[matched["library"]].add(int(matched["cuda"]))
    return {library: sorted(found[library]) for library in sorted(found)}


def conflict(libraries: Libraries) -> str | None:
    """Return the packages that have overwritten each other, or None if there are none."""
    both = {library: versions for library, versions in libraries.items() if len(versions) > 1}
    each = (
        f"{' and '.join(f'nvidia-{library}-cu{version}' for version in versions)} both write "
        f"nvidia/{library.replace('-', '_')}"
        for library, versions in both.items()
    )
    return "; ".join(each) or None


def driver_for(cuda: int) -> str:
    """Return the driver that a major version of CUDA requires."""
    oldest = LEAST_DRIVERS.get(cuda)
    return f"NVIDIA's driver {oldest} or later" if oldest else "a newer NVIDIA driver"


def energy_checks() -> Iterator[Check]:
    """Check the energy meters of this node, which a run records."""
    probe = RepeatedProbe(OSError, ValueError)
    zones = probe.read("RAPL", rapl_zones)
    absent = probe.absent.get("RAPL", "")
    detail = absent or f"RAPL: {', '.join(z.name for z in zones or ())}"
    remedy = OPEN_RAPL if "Permission denied" in absent else ""
    yield check("energy", "processors", zones is not None, detail, remedy)
    for vendor in VENDORS:
        try:
            with vendor.source() as tool:
                read = [r for r in tool.read() if r.watts is not None or r.millijoules is not None]
                detail = f"{tool.tool}: {len(read)} of {len(tool.names)}"
                complete = len(read) == len(tool.names)
        except AbsentError:
            continue  # There are none of this vendor, or the rows of accelerators name its tool.
        yield check("energy", f"{vendor.name} accelerators", complete, detail)


def _packages() -> Iterator[Check]:
    for area, name, package in PACKAGES:
        yield package_check(area, name, package, OPTIONAL.get(name, ""))
    engines = [name for name, package in ENGINES.items() if package.installed]
    detail = ", ".join(f"engine.name={name}" for name in engines) or "none"
    remedy = f"{ENGINES['tensorflow'].remedy} or [torch]"
    yield check("framework", "an engine", bool(engines), detail, remedy, required=True)
    mpi = find_mpirun() or ctypes.util.find_library("mpi")
    remedy = f"{pip_install('mpi')}, or your site's MPI"
    yield check("collective", "MPI library", bool(mpi), mpi or "none", remedy)


def _official() -> Iterator[Check]:
    """Check the code and the variables: official results need a release and its variables."""
    versions = {"aiperf-hpc": __version__, FILES: package_digest()}
    for result in (
        RELEASE.check(code_here(versions, changes())),
        ENVIRONMENT.check(Environment([recorded_variables(os.environ)], "fp32")),
    ):
        remedy = "; ".join(result.failures)
        yield Check("official results", result.rule, result.passed, result.found, remedy)


def examine_storage(folder: Path) -> Iterator[Check]:
    """Check ``folder`` as a place for runs."""
    place = nearest_existing(folder)
    mount = known_mount_of(place.resolve())
    kind, where = mount.type, f"{mount.type} at {mount.point}"
    shared = kind.startswith(NETWORK_FILE_SYSTEMS)
    try:
        require_writable(folder)
    except RunDirectoryError as error:
        detail, _, remedy = str(error).rpartition("; ")
    else:
        detail, remedy = f"{place}: {where}, {size(free_bytes(place))} free", ""
    yield check("storage", "writable", not remedy, detail, remedy, required=True)
    detail = f"{kind} is {'a' if shared else 'not a'} network file system"
    remedy = "needed only for several nodes: a folder on NFS or a similar file system"
    yield check("storage", "shared", shared, detail, remedy)
