"""``aiperf doctor``: what this machine has, what is missing, and what installs it."""

from __future__ import annotations

import ctypes.util
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path

import psutil

from aiperf_hpc.errors import SchedulerError
from aiperf_hpc.primary.launch import free_bytes
from aiperf_hpc.primary.slurm_client import SlurmCommands
from aiperf_hpc.primary.words import size
from aiperf_hpc.trial import Value

NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "lustre", "beegfs", "gpfs", "ceph", "cifs", "9p", "fuse.")


class Check(Value):
    """One thing that was looked for."""

    area: str
    name: str
    found: bool
    detail: str
    remedy: str = ""
    """The command that installs it, where there is one."""
    required: bool = False
    """Whether no run is possible without it."""


PACKAGES = (
    ("framework", "tensorflow", "tensorflow", "pip install 'aiperf-hpc[cpu]'  (or [cuda])", False),
    ("framework", "torch", "torch", "pip install 'aiperf-hpc[torch]'; README, Frameworks", False),
    ("collective", "mpi4py", "mpi4py", "pip install 'aiperf-hpc[mpi]'", False),
    ("collective", "horovod", "horovod", "make horovod  (optional)", False),
    ("SLURM", "pyslurm", "pyslurm", "pip install 'aiperf-hpc[pyslurm]'  (optional)", False),
    ("search", "nni", "nni", "pip install nni  (not used yet)", False),
)  # fmt: skip


def examine(folder: Path) -> list[Check]:
    """Look at this machine, and at ``folder`` as a place for runs."""
    return [
        *_machine(),
        *_accelerators(),
        *_packages(),
        *_slurm(),
        *_storage(folder),
    ]


def _machine() -> Iterator[Check]:
    cores = len(os.sched_getaffinity(0))
    memory = psutil.virtual_memory()
    detail = f"{cores} usable of {os.cpu_count()}; {platform.machine()}"
    yield Check(area="machine", name="cores", found=True, detail=detail)
    detail = f"{size(memory.available)} available of {size(memory.total)}"
    yield Check(area="machine", name="memory", found=True, detail=detail)
    version = platform.python_version_tuple()
    new_enough = (int(version[0]), int(version[1])) >= (3, 11)
    yield Check(
        area="machine",
        name="python",
        found=new_enough,
        detail=platform.python_version(),
        remedy="" if new_enough else "install Python 3.11 or 3.12",
        required=True,
    )


def _accelerators() -> Iterator[Check]:
    tools = {
        "NVIDIA": ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
        "AMD": ["rocm-smi", "--showproductname", "--csv"],
        "Ascend": ["npu-smi", "info", "-l"],
    }
    for maker, command in tools.items():
        output = _output(command)
        if output is None:
            yield Check(area="accelerator", name=maker, found=False, detail=f"no {command[0]}")
        else:
            devices = "; ".join(line.strip() for line in output.splitlines() if line.strip())
            yield Check(area="accelerator", name=maker, found=bool(devices), detail=devices)


def _packages() -> Iterator[Check]:
    for area, name, module, remedy, required in PACKAGES:
        found = util.find_spec(module) is not None
        yield Check(
            area=area,
            name=name,
            found=found,
            detail=_version(module) if found else "not installed",
            remedy="" if found else remedy,
            required=required,
        )
    yield _engines()
    mpi = shutil.which("mpirun") or ctypes.util.find_library("mpi")
    yield Check(
        area="collective",
        name="MPI library",
        found=bool(mpi),
        detail=mpi or "none",
        remedy="" if mpi else "pip install 'aiperf-hpc[mpi]', or your site's MPI",
    )


def _engines() -> Check:
    """Look for one of the engines that train, which are named as their packages."""
    found = [name for name in ("tensorflow", "torch") if util.find_spec(name) is not None]
    return Check(
        area="framework",
        name="an engine",
        found=bool(found),
        detail=", ".join(f"engine.name={name}" for name in found) or "none",
        remedy="" if found else "pip install 'aiperf-hpc[cpu]', [cuda] or [torch]",
        required=True,
    )


def _slurm() -> Iterator[Check]:
    for command in ("sbatch", "squeue", "srun"):
        where = shutil.which(command)
        yield Check(
            area="SLURM",
            name=command,
            found=where is not None,
            detail=where or "not on the PATH",
            remedy=""
            if where
            else "your site's SLURM client; on Debian: apt-get install slurm-client",
        )
    answer = _output(["sinfo", "--version"])
    if answer is not None:
        yield Check(area="SLURM", name="version", found=True, detail=answer.strip())
    if shutil.which("sinfo") is not None:
        yield _controller()


def _controller() -> Check:
    try:
        found = sorted({group.partition for group in SlurmCommands().partitions()})
    except SchedulerError as error:
        return Check(
            area="SLURM",
            name="controller",
            found=False,
            detail=f"does not answer: {error}",
            remedy="start it, or use --launcher local",
        )
    return Check(
        area="SLURM", name="controller", found=True, detail="partitions: " + ", ".join(found)
    )


def _storage(folder: Path) -> Iterator[Check]:
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    kind, mount = _file_system(folder)
    shared = kind.startswith(NETWORK_FILE_SYSTEMS)
    detail = f"{folder}: {kind} at {mount}, {size(free_bytes(folder))} free"
    yield Check(
        area="storage",
        name="writable",
        found=os.access(folder, os.W_OK),
        detail=detail,
        remedy="" if os.access(folder, os.W_OK) else "choose another folder with --run-dir",
        required=True,
    )
    yield Check(
        area="storage",
        name="shared",
        found=shared,
        detail=f"{kind} is {'a' if shared else 'no'} network file system",
        remedy="" if shared else "needed for several nodes only: a folder on NFS or the like",
    )


def _file_system(folder: Path) -> tuple[str, str]:
    """Return the type and mount point of the file system that holds ``folder``."""
    best = ("unknown", "/")
    depth = -1
    for partition in psutil.disk_partitions(all=True):
        mount = Path(partition.mountpoint)
        if (mount == folder or mount in folder.parents) and len(mount.parts) > depth:
            best, depth = (partition.fstype, partition.mountpoint), len(mount.parts)
    return best


def _version(module: str) -> str:
    names = metadata.packages_distributions().get(module, [module])
    return f"{names[0]} {metadata.version(names[0])}"


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="locale",
            errors="replace",
            check=False,
            timeout=10,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
