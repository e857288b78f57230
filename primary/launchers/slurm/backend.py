"""SLURM's back end: selects the launcher of a run and describes its commands."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aiperf_hpc.config import RunConfig, SlurmConfig
from aiperf_hpc.errors import SchedulerError, UsageError
from aiperf_hpc.host.schedulers import SLURM, job_variable
from aiperf_hpc.primary.doctor_rows import CONTROLLER, Check, check, output_of, package_check
from aiperf_hpc.primary.launchers.backend import Backend, Choice, Request
from aiperf_hpc.primary.launchers.base import Launcher
from aiperf_hpc.primary.launchers.ranks import Settled
from aiperf_hpc.primary.launchers.slurm import allocation, resources
from aiperf_hpc.primary.launchers.slurm.array_launcher import ARRAY, ArrayLauncher, array_option
from aiperf_hpc.primary.launchers.slurm.batch_script import (
    batch_script,
    group_options,
    time_limit_minutes,
)
from aiperf_hpc.primary.launchers.slurm.client import RATE_LIMIT, RateLimit, SlurmClient
from aiperf_hpc.primary.launchers.slurm.jobs import Nodes
from aiperf_hpc.primary.launchers.slurm.pyslurm_client import PYSLURM, PyslurmClient
from aiperf_hpc.primary.launchers.slurm.step_launcher import StepLauncher
from aiperf_hpc.primary.launchers.slurm.steps import Attempt, Place, step_command
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths, replica_name
from aiperf_hpc.run.storage import Retry

COMMANDS = ("sbatch", "squeue", "srun")
INSTALL = "your site's SLURM client; on Debian: apt-get install slurm-client"


def slurm_client(config: SlurmConfig) -> SlurmClient:
    """Return the configured SLURM client. Raises UsageError if it is not installed."""
    return PyslurmClient() if config.client == "pyslurm" else SlurmClient()


@dataclass(frozen=True, slots=True)
class SlurmChoice(Choice):
    """One of SLURM's launchers, and the cluster's nodes."""

    nodes: Sequence[Nodes] = ()
    """Nodes as returned by ``SlurmClient.partitions``, or nodes of the allocation; empty if SLURM
    was not queried."""

    def settle(self) -> Settled:
        config, inside = self.request.config, self.launcher == "inside"
        if inside:
            resources.require_none(config.slurm)
        else:
            resources.require_total(config.slurm, self.request.nodes)
        return resources.settle_on_cluster(config, self.request.most, self.nodes, inside=inside)


@dataclass(eq=False)
class SlurmBackend(Backend):
    """Back end that launches through SLURM."""

    needs = (*COMMANDS, CONTROLLER)

    client: SlurmClient | None = None
    """Overrides the client of a run's settings."""
    rate_limit: RateLimit = RATE_LIMIT

    def choose(self, request: Request) -> Choice:
        """Return the launcher; ``auto`` selects ``inside`` in a job, else ``slurm.mode``.

        If SLURM is silent, ``auto`` rejects more replicas than this machine has cores: a login
        node must not start 1,000 local replicas.
        """
        asked, job = request.launcher, job_variable("id")
        if request.dry and asked != "auto":
            return SlurmChoice(request, launcher=_resolved(request))
        if asked == "inside" or (asked == "auto" and job and shutil.which("srun")):
            why = f"this process is in job {job}; its nodes are used"
            return SlurmChoice(request, why, "inside", self._look_inside(request, job))
        if shutil.which("sbatch") is None:
            if asked == "auto":
                return Choice(request, "there is no sbatch on the PATH")
            raise UsageError(
                f"--launcher {asked}: there is no sbatch on the PATH; load your site's SLURM, "
                "or use --launcher local"
            )
        client = self.client or slurm_client(request.config.slurm)
        try:
            partitions = self.rate_limit.call(client.partitions)
        except SchedulerError as error:
            return _without_answer(request, f"SLURM does not respond ({error})")
        resources.check_cluster(request.config.slurm, request.most, request.hours, partitions)
        why = "SLURM responds, and this process is in none of its jobs"
        return SlurmChoice(request, why, _resolved(request), partitions)

    def _look_inside(self, request: Request, job: str | None) -> list[Nodes]:
        """Require that the allocation satisfies the request; return its nodes."""
        own = allocation.CurrentAllocation(SlurmClient(), job)
        try:
            jobs = self.rate_limit.call(own.look)
        except SchedulerError as error:
            raise UsageError(
                f"--launcher inside: SLURM does not report the allocation ({error}); start its "
                "controller, or use --launcher local to run on this machine"
            ) from None
        allocation.check_allocation(jobs, request.most, request.hours, time.time())
        return allocation.nodes_inside(jobs)

    def launcher(
        self, manifest: RunManifest, paths: RunPaths, launch: int, retry: Retry
    ) -> Launcher:
        limit = self.rate_limit
        if manifest.launcher in ARRAY:
            client = self.client or slurm_client(manifest.config.slurm)
            return ArrayLauncher(manifest, paths, client, limit, launch=launch, retry=retry)
        client = SlurmClient()
        nodes = (
            allocation.CurrentAllocation(client, job_variable("id"))
            if manifest.launcher == "inside"
            else allocation.SubmittedAllocation(manifest, paths, client)
        )
        return StepLauncher(manifest, paths, nodes, client, limit, launch=launch)

    def dry_run(self, manifest: RunManifest, paths: RunPaths) -> str:
        if manifest.launcher == "inside":
            return _steps_text(manifest, paths, job_variable("id") or "JOB")
        if manifest.launcher == "allocation":
            minutes = time_limit_minutes(manifest.hours, manifest.config.slurm)
            asks = (
                allocation.salloc_command(manifest, g.nodes, minutes, g)
                for g in resources.groups_of(manifest)
            )
            return "\n".join([*map(shlex.join, asks), _steps_text(manifest, paths, "JOB")])
        return "\n".join([batch_script(manifest, paths), *_submissions(manifest, paths)])

    def runs_this_python(self, config: RunConfig, launcher: str) -> bool:
        # A site's batch script may start another Python: then the nodes check.
        return launcher not in ARRAY or config.slurm.template is None

    def wait(self) -> None:
        self.rate_limit.wait()

    def release(self, manifest: RunManifest) -> str | None:
        return allocation.release_jobs(manifest) if manifest.launcher == "allocation" else None

    def checks(self) -> Iterator[Check]:
        yield package_check(SLURM.title, "pyslurm", PYSLURM, "for slurm.client=pyslurm")
        for command in COMMANDS:
            where = shutil.which(command)
            detail = where or "not on the PATH"
            yield check(SLURM.title, command, where is not None, detail, INSTALL)
        version = output_of(["sinfo", "--version"])
        if version is not None:
            yield check(SLURM.title, "version", True, version.strip())
        if shutil.which("sinfo") is not None:
            yield _controller()


BACKEND = SlurmBackend()


def _resolved(request: Request) -> str:
    """Return the launcher for a requested name."""
    named = request.launcher not in ("auto", "slurm")
    return request.launcher if named else request.config.slurm.mode


def _without_answer(request: Request, silent: str) -> Choice:
    """Return the launcher if SLURM does not respond. Raises UsageError if there is none."""
    if request.launcher == "auto" and request.most <= len(os.sched_getaffinity(0)):
        return Choice(request, silent)
    raise UsageError(
        f"--launcher {request.launcher}: {silent}; start its controller, or use --launcher local "
        "to run on this machine"
    )


def _submissions(manifest: RunManifest, paths: RunPaths) -> Iterator[str]:
    """Yield script comments with the sbatch command of each node group."""
    if manifest.config.slurm.node_groups:
        replicas = [replica_name(number) for number in range(manifest.replicas)]
        for group, names in resources.by_group(manifest, replicas):
            options = [array_option(names), *group_options(group.slurm)]
            yield f"# {shlex.join(['sbatch', *options, str(paths.batch_script)])}"


def _steps_text(manifest: RunManifest, paths: RunPaths, job: str) -> str:
    """Return the steps of a job, with placeholders NODE0, NODE1, ... for the nodes."""
    each, lines = manifest.config.replica.nodes, []
    for number in range(manifest.replicas):
        nodes = tuple(f"NODE{n}" for n in range(number * each, (number + 1) * each))
        attempt = Attempt(replica_name(number), 0, 0)
        place = Place(job, nodes, resources.group_of(manifest, attempt.replica))
        lines.append(shlex.join(step_command(manifest, paths, attempt, place)))
    return "\n".join(lines)


def _controller() -> Check:
    try:
        found = sorted({group.partition for group in SlurmClient().partitions()})
    except SchedulerError as error:
        remedy = "set SLURM_CONF" if "configuration" in str(error) else "start it,"
        detail = f"does not respond: {error}"
        return check(SLURM.title, CONTROLLER, False, detail, f"{remedy} or use --launcher local")
    return check(SLURM.title, CONTROLLER, True, f"partitions: {', '.join(found)}")
