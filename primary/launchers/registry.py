"""Which launchers there are, which one a run gets, and what it would do."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable

from aiperf_hpc.config import RunConfig, SlurmConfig
from aiperf_hpc.errors import SchedulerError, UsageError
from aiperf_hpc.primary.launchers.base import Launcher, LocalLauncher, local_commands
from aiperf_hpc.primary.launchers.slurm.batch_script import batch_script
from aiperf_hpc.primary.launchers.slurm.client import SlurmClient, SlurmCommands
from aiperf_hpc.primary.launchers.slurm.launcher import SlurmLauncher, check_cluster
from aiperf_hpc.primary.launchers.slurm.pyslurm_client import PyslurmClient
from aiperf_hpc.primary.launchers.slurm.rate_limit import RATE_LIMIT, RateLimit
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.storage import Retry

LAUNCHERS: dict[str, Callable[[RunManifest, RunPaths, int, Retry], Launcher]] = {
    "local": lambda manifest, paths, launch, _: LocalLauncher(manifest, paths, launch),
    "slurm": lambda manifest, paths, launch, retry: SlurmLauncher(
        manifest,
        paths,
        slurm_client(manifest.config.slurm),
        RATE_LIMIT,
        launch=launch,
        retry=retry,
    ),
}


def slurm_client(config: SlurmConfig) -> SlurmClient:
    """Return what speaks to SLURM. Raises UsageError where it is not there."""
    return PyslurmClient() if config.client == "pyslurm" else SlurmCommands()


def choose_launcher(
    asked: str,
    config: RunConfig,
    nodes: int,
    hours: float,
    client: SlurmClient | None = None,
    rate_limit: RateLimit = RATE_LIMIT,
) -> str:
    """Return the launcher for ``auto``, ``slurm`` or ``local``, once it can carry out the run.

    ``auto`` is SLURM where it answers, else this machine, and says so where a client is
    installed. But more replicas than this machine has cores are a cluster's run: on a login
    node whose controller is away nobody wants 1,000 replicas.

    Raises:
        UsageError: SLURM is not there, does not answer, or lacks what is asked for.
    """
    where = shutil.which("sbatch")
    if asked == "local" or (asked == "auto" and where is None):
        return "local"
    if where is None:
        raise UsageError(
            "--launcher slurm: there is no sbatch on the PATH; load your site's SLURM, "
            "or use --launcher local"
        )
    try:
        partitions = rate_limit.call((client or slurm_client(config.slurm)).partitions)
    except SchedulerError as error:
        silent = f"{where} is installed, but SLURM does not answer ({error})"
        if asked == "auto" and nodes <= len(os.sched_getaffinity(0)):
            sys.stderr.write(f"aiperf: {silent}; the run is on this machine\n")
            return "local"
        raise UsageError(
            f"--launcher {asked}: {silent}; start its controller, or use --launcher local "
            "to run on this machine"
        ) from None
    check_cluster(config.slurm, nodes, hours, partitions)
    return "slurm"


def dry_run(manifest: RunManifest, paths: RunPaths) -> str:
    """Return what would be submitted or started."""
    if manifest.launcher == "slurm":
        return batch_script(manifest, paths)
    return "\n".join(shlex.join(c) for c in local_commands(manifest, paths).values())
