"""Common base of SLURM's launchers: states of replicas, back-off, and errors of submission."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from aiperf_hpc import errors
from aiperf_hpc.primary.launchers.base import ReplicaLauncher, ReplicaState
from aiperf_hpc.primary.launchers.slurm.batch_script import job_name
from aiperf_hpc.primary.launchers.slurm.client import SHORTEST_SECONDS, RateLimit, SlurmClient
from aiperf_hpc.primary.launchers.slurm.resources import check_cluster
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.streams import warn
from aiperf_hpc.trial import JobPhase

LONGEST_SECONDS = 30.0
"""Maximum time between two calls while nothing changes or SLURM does not respond."""
BACK_OFF = 1.5


class SlurmLauncher(ReplicaLauncher):
    """Base of the launchers that run replicas through SLURM."""

    def __init__(
        self,
        manifest: RunManifest,
        paths: RunPaths,
        client: SlurmClient,
        rate_limit: RateLimit,
        launch: int = 0,
    ) -> None:
        """Create a launcher without starting replicas.

        Args:
            manifest, paths, launch: as in the base class.
            client: client of SLURM.
            rate_limit: rate limit of the client's calls, including earlier ones.
        """
        super().__init__(manifest, paths, launch)
        self.name = manifest.launcher
        self._client = client
        self._rate_limit = rate_limit
        self._states: dict[str, ReplicaState] = {}
        self._interval = SHORTEST_SECONDS

    def _check_nodes(self, nodes: int) -> None:
        """Require that a run can have this number of nodes, by one client call."""
        manifest = self._manifest
        check_cluster(manifest.config.slurm, nodes, manifest.hours, self._client.partitions())

    def check(self, nodes: int) -> None:
        what = f"--nodes {nodes}: SLURM does not report its nodes"
        self._rate_limit.require(lambda: self._check_nodes(nodes), what)

    def _update(self, replica: str, detail: str, phase: JobPhase | None = None) -> None:
        """Change the detail of a replica's state, and its phase if one is given."""
        state = self._states[replica]
        self._states[replica] = replace(state, detail=detail, phase=phase or state.phase)

    def _withdraw(self, jobs: Sequence[str]) -> None:
        """Cancel jobs of a start that could not be completed."""
        try:
            if jobs:
                self._rate_limit.call(lambda: self._client.cancel(*jobs))
        except errors.SchedulerError as error:
            warn(f"cannot cancel {', '.join(jobs)} ({error}): use scancel")

    def _refusal(self, error: errors.SchedulerError, alternative: str = "") -> errors.UsageError:
        """Return the error for a job that SLURM rejected."""
        if isinstance(error, errors.SchedulerSilentError):
            return errors.UsageError(
                f"SLURM did not confirm the job: {error}; if it was accepted, "
                f"`scancel --name={job_name(self._manifest)}` removes it"
            )
        return errors.UsageError(
            f"SLURM refused the job: {error}; nothing was started; change the slurm section "
            f"of the configuration{alternative}"
        )

    def _silent(self, error: errors.SchedulerError) -> None:
        self.problem = str(error)
        self._back_off()

    def _back_off(self) -> None:
        self._interval = min(LONGEST_SECONDS, self._interval * BACK_OFF)


def unfit_node(paths: RunPaths, status: int) -> str | None:
    """Return the fault of a node if a replica's exit status reports one."""
    reasons = {
        errors.PREFLIGHT_STATUS: "its node differs from the others; its output states how",
        errors.UNSEEN_RUN_STATUS: (
            f"its node cannot access the run directory {paths.root}; name a folder on a shared "
            "file system with --run-dir"
        ),
        errors.UNSEEN_PYTHON_STATUS: (
            f"its node cannot access {sys.executable}; install the environment on a shared file "
            "system"
        ),
    }
    return reasons.get(status)
