"""The rows of ``aiperf doctor`` about SLURM."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from aiperf_hpc.errors import SchedulerError
from aiperf_hpc.host.schedulers import SLURM
from aiperf_hpc.primary.check import CONTROLLER, Check, output_of, package_check
from aiperf_hpc.primary.launchers.slurm.client import SlurmClient
from aiperf_hpc.primary.launchers.slurm.pyslurm_client import PYSLURM

COMMANDS = ("sbatch", "squeue", "srun")
NEEDS = (*COMMANDS, CONTROLLER)


def checks() -> Iterator[Check]:
    """Look at SLURM's commands and at its controller."""
    yield package_check(SLURM.title, "pyslurm", PYSLURM, "for slurm.client=pyslurm")
    for command in COMMANDS:
        where = shutil.which(command)
        yield Check(
            area=SLURM.title,
            name=command,
            found=where is not None,
            detail=where or "not on the PATH",
            remedy=""
            if where
            else "your site's SLURM client; on Debian: apt-get install slurm-client",
        )
    answer = output_of(["sinfo", "--version"])
    if answer is not None:
        yield Check(area=SLURM.title, name="version", found=True, detail=answer.strip())
    if shutil.which("sinfo") is not None:
        yield _controller()


def _controller() -> Check:
    try:
        found = sorted({group.partition for group in SlurmClient().partitions()})
    except SchedulerError as error:
        return Check(
            area=SLURM.title,
            name=CONTROLLER,
            found=False,
            detail=f"does not answer: {error}",
            remedy="set SLURM_CONF or use --launcher local"
            if "configuration" in str(error)
            else "start it, or use --launcher local",
        )
    return Check(
        area=SLURM.title, name=CONTROLLER, found=True, detail="partitions: " + ", ".join(found)
    )
