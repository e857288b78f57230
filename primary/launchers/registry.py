"""Which launchers there are, which one a run gets, and what it would do."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pydantic import TypeAdapter

from aiperf_hpc.config import RunConfig, SlurmConfig
from aiperf_hpc.errors import SchedulerError, UsageError
from aiperf_hpc.primary.launchers.base import (
    Launcher,
    LocalLauncher,
    local_commands,
)
from aiperf_hpc.primary.launchers.slurm.allocation import Allocation, salloc_command
from aiperf_hpc.primary.launchers.slurm.batch_script import (
    batch_script,
    group_options,
    time_limit_minutes,
)
from aiperf_hpc.primary.launchers.slurm.client import Nodes, SlurmClient, SlurmCommands
from aiperf_hpc.primary.launchers.slurm.held_jobs import HeldJobs
from aiperf_hpc.primary.launchers.slurm.inside import Inside, check_allocation, nodes_inside
from aiperf_hpc.primary.launchers.slurm.launcher import ARRAY, SlurmLauncher, array_of
from aiperf_hpc.primary.launchers.slurm.node_groups import by_group, group_of, groups_of
from aiperf_hpc.primary.launchers.slurm.partitions import check_cluster
from aiperf_hpc.primary.launchers.slurm.pyslurm_client import PyslurmClient
from aiperf_hpc.primary.launchers.slurm.rate_limit import RATE_LIMIT, RateLimit
from aiperf_hpc.primary.launchers.slurm.step_launcher import StepLauncher
from aiperf_hpc.primary.launchers.slurm.steps import Life, Place, step_command
from aiperf_hpc.run.identity import replica_name
from aiperf_hpc.run.manifest import RequestedLauncher, RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.storage import Retry
from aiperf_hpc.slurm import job_id


def _local(manifest: RunManifest, paths: RunPaths, launch: int, retry: Retry) -> Launcher:
    del retry
    return LocalLauncher(manifest, paths, launch)


def _array(manifest: RunManifest, paths: RunPaths, launch: int, retry: Retry) -> Launcher:
    client = slurm_client(manifest.config.slurm)
    return SlurmLauncher(manifest, paths, client, RATE_LIMIT, launch=launch, retry=retry)


def _inside(manifest: RunManifest, paths: RunPaths, launch: int, retry: Retry) -> Launcher:
    del retry
    held_jobs = HeldJobs()
    holding = Inside(held_jobs, job_id())
    return StepLauncher(manifest, paths, holding, held_jobs, RATE_LIMIT, launch=launch)


def _allocation(manifest: RunManifest, paths: RunPaths, launch: int, retry: Retry) -> Launcher:
    del retry
    held_jobs = HeldJobs()
    holding = Allocation(manifest, paths, held_jobs)
    return StepLauncher(manifest, paths, holding, held_jobs, RATE_LIMIT, launch=launch)


LAUNCHERS: dict[str, Callable[[RunManifest, RunPaths, int, Retry], Launcher]] = {
    "local": _local,
    **dict.fromkeys(ARRAY, _array),
    "allocation": _allocation,
    "inside": _inside,
}


def slurm_client(config: SlurmConfig) -> SlurmClient:
    """Return what speaks to SLURM. Raises UsageError where it is not there."""
    return PyslurmClient() if config.client == "pyslurm" else SlurmCommands()


class Chosen(NamedTuple):
    """A launcher, and what the cluster has."""

    launcher: str
    nodes: Sequence[Nodes] = ()
    """What ``SlurmClient.partitions`` returned or, in an allocation, what that is made of; empty
    where SLURM was not asked."""


def choose_launcher(
    asked: str,
    config: RunConfig,
    nodes: int,
    hours: float,
    client: SlurmClient | None = None,
    rate_limit: RateLimit = RATE_LIMIT,
    held_jobs: HeldJobs | None = None,
) -> Chosen:
    """Return the launcher for what was asked for, once it can carry out the run.

    ``auto`` is ``inside`` in a job of SLURM, else SLURM where it answers, else this machine, and
    says which and why. But more replicas than this machine has cores are a cluster's run: on a
    login node whose controller is away nobody wants 1,000 replicas.

    Raises:
        UsageError: SLURM is not there, does not answer, or lacks what is asked for.
    """
    job = job_id()
    if asked == "inside" or (asked == "auto" and job and shutil.which("srun")):
        there = _check_inside(nodes, hours, held_jobs or HeldJobs(), rate_limit)
        _say_why(asked, "inside", f"this is in job {job}, whose nodes it takes")
        return Chosen("inside", there)
    where = shutil.which("sbatch")
    if asked == "local" or (asked == "auto" and where is None):
        _say_why(asked, "local", "there is no sbatch on the PATH")
        return Chosen("local")
    if where is None:
        raise UsageError(
            f"--launcher {asked}: there is no sbatch on the PATH; load your site's SLURM, "
            "or use --launcher local"
        )
    try:
        partitions = rate_limit.call((client or slurm_client(config.slurm)).partitions)
    except SchedulerError as error:
        silent = f"{where} is installed, but SLURM does not answer ({error})"
        if asked == "auto" and nodes <= len(os.sched_getaffinity(0)):
            _say_why(asked, "local", f"{silent}; the run is on this machine")
            return Chosen("local")
        raise UsageError(
            f"--launcher {asked}: {silent}; start its controller, or use --launcher local "
            "to run on this machine"
        ) from None
    check_cluster(config.slurm, nodes, hours, partitions)
    chosen = resolved(asked, config)
    _say_why(asked, chosen, "SLURM answers, and this is in none of its jobs")
    return Chosen(chosen, partitions)


def named(chosen: str) -> RequestedLauncher:
    """Return the name by which a launcher that was chosen is asked for."""
    return TypeAdapter[RequestedLauncher](RequestedLauncher).validate_python(chosen)


def resolved(asked: str, config: RunConfig) -> str:
    """Return the launcher that a named one stands for."""
    return config.slurm.mode if asked in ("auto", "slurm") else asked


def _say_why(asked: str, chosen: str, why: str) -> None:
    if asked == "auto":
        sys.stderr.write(f"aiperf: --launcher auto: {chosen}: {why}\n")


def _check_inside(
    nodes: int, hours: float, held_jobs: HeldJobs, rate_limit: RateLimit
) -> list[Nodes]:
    """Require of the allocation what is asked for; return what it is made of."""
    holding = Inside(held_jobs, job_id())
    try:
        jobs = rate_limit.call(holding.look)
    except SchedulerError as error:
        raise UsageError(
            f"--launcher inside: SLURM does not tell of the allocation ({error}); start its "
            "controller, or use --launcher local to run on this machine"
        ) from None
    check_allocation(jobs, nodes, hours, time.time())
    return nodes_inside(jobs)


def dry_run(manifest: RunManifest, paths: RunPaths) -> str:
    """Return what would be submitted or started."""
    if manifest.launcher == "inside":
        return _steps_text(manifest, paths, job_id() or "JOB")
    if manifest.launcher == "allocation":
        minutes = time_limit_minutes(manifest.hours, manifest.config.slurm)
        asks = (salloc_command(manifest, g.nodes, minutes, g) for g in groups_of(manifest))
        return "\n".join([*map(shlex.join, asks), _steps_text(manifest, paths, "JOB")])
    if manifest.launcher in ARRAY:
        return "\n".join([batch_script(manifest, paths), *_submissions(manifest, paths)])
    return "\n".join(shlex.join(c) for c in local_commands(manifest, paths).values())


def _submissions(manifest: RunManifest, paths: RunPaths) -> Iterator[str]:
    """Yield, as comments of the script, how it is submitted once for each group of nodes."""
    if manifest.config.slurm.node_groups:
        replicas = [replica_name(number) for number in range(manifest.replicas)]
        for group, names in by_group(manifest, replicas):
            options = [array_of(names), *group_options(group.slurm)]
            yield f"# {shlex.join(['sbatch', *options, str(paths.batch_script)])}"


def _steps_text(manifest: RunManifest, paths: RunPaths, job: str) -> str:
    """Return the steps of a job, whose nodes are called NODE0, NODE1, ... as yet."""
    each, lines = manifest.config.replica.nodes, []
    for number in range(manifest.replicas):
        nodes = tuple(f"NODE{n}" for n in range(number * each, (number + 1) * each))
        life = Life(replica_name(number), 0, 0)
        place = Place(job, nodes, group_of(manifest, life.replica))
        lines.append(shlex.join(step_command(manifest, paths, life, place)))
    return "\n".join(lines)
