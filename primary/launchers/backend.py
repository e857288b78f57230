"""Back ends that launch replicas: the local one, and one per scheduler."""

from __future__ import annotations

import importlib
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import UsageError
from aiperf_hpc.host.schedulers import SCHEDULERS, Scheduler
from aiperf_hpc.primary.doctor_rows import Check
from aiperf_hpc.primary.launchers.base import Launcher, LocalLauncher, local_commands
from aiperf_hpc.primary.launchers.ranks import Settled, settle_here
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.storage import Retry
from aiperf_hpc.streams import warn
from aiperf_hpc.workloads.registry import missing


class Request(NamedTuple):
    """A user's request for a run."""

    launcher: str
    """Requested launcher, as ``RequestedLauncher``."""
    config: RunConfig
    nodes: int
    """Initial number of nodes."""
    most: int
    """Maximum number of nodes."""
    hours: float
    dry: bool = False
    """Whether a named launcher is accepted even if it cannot start the run."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Resolved launcher of a request, with the reason; local by default."""

    request: Request
    why: str = ""
    launcher: str = "local"

    def settle(self) -> Settled:
        """Return the configuration with numbers. Raises UsageError if the nodes do not suit it."""
        if lacking := missing(self.request.config):  # Sources of the number of ranks.
            raise UsageError("; ".join(lacking))
        return settle_here(self.request.config, self.request.most)


class Backend(ABC):
    """Back end of launchers. A scheduler's back end is ``BACKEND`` of the module in its row."""

    needs: tuple[str, ...] = ()
    """Names of the checks that must pass before a launch."""

    @abstractmethod
    def choose(self, request: Request) -> Choice:
        """Return the launcher for a request, after checking that it can satisfy it.

        ``auto`` selects the local launcher if the scheduler is not installed.

        Raises:
            UsageError: the scheduler is not installed, does not respond, or lacks the requested
                resources.
        """

    @abstractmethod
    def launcher(
        self, manifest: RunManifest, paths: RunPaths, launch: int, retry: Retry
    ) -> Launcher:
        """Return the launcher of a run whose replicas were launched ``launch`` times before."""

    @abstractmethod
    def dry_run(self, manifest: RunManifest, paths: RunPaths) -> str:
        """Return the script or command that would be submitted or started."""

    def runs_this_python(self, config: RunConfig, launcher: str) -> bool:
        """Return whether all nodes are known to use this Python installation and its packages."""
        del config, launcher
        return True

    def wait(self) -> None:
        """Wait until the rate limit allows a request to the scheduler."""
        return

    def release(self, manifest: RunManifest) -> str | None:
        """Release the nodes of a run whose primary has died; return the reason of a failure."""
        del manifest
        return None

    def checks(self) -> Iterable[Check]:
        """Check this machine's installation of the scheduler."""
        return ()


class LocalBackend(Backend):
    """Runs replicas as processes of this machine."""

    def choose(self, request: Request) -> Choice:
        return Choice(request, launcher=request.launcher)

    def launcher(
        self, manifest: RunManifest, paths: RunPaths, launch: int, retry: Retry
    ) -> Launcher:
        del retry
        return LocalLauncher(manifest, paths, launch)

    def dry_run(self, manifest: RunManifest, paths: RunPaths) -> str:
        return "\n".join(shlex.join(c) for c in local_commands(manifest, paths).values())


def load(scheduler: Scheduler) -> Backend:
    """Return the back end of a scheduler."""
    backend: Backend = importlib.import_module(scheduler.backend).BACKEND
    return backend


def backend_of(launcher: str) -> Backend:
    """Return the back end of the launcher of this name."""
    found = (load(each) for each in SCHEDULERS if launcher in each.launchers)
    return next(found, LocalBackend())


def choose_launcher(request: Request) -> Choice:
    """Return the launcher for a request, after checking that it can satisfy it.

    ``auto`` selects the first installed scheduler, else the local launcher, and records the reason.

    Raises:
        UsageError: the scheduler is not installed, does not respond, or lacks the requested
            resources.
    """
    if request.launcher != "auto":
        return backend_of(request.launcher).choose(request)
    choice = Choice(request)
    for scheduler in SCHEDULERS:
        choice = load(scheduler).choose(request)
        if choice.launcher != "local":
            break
    if choice.launcher == "local":
        warn(f"running on this machine, because {choice.why}; `--launcher local` omits this line")
    else:
        warn(f"--launcher auto: {choice.launcher}: {choice.why}")
    return choice
