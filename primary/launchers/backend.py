"""The back ends that launch replicas: this machine's, and one for each scheduler."""

from __future__ import annotations

import importlib
import shlex
import sys
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
from aiperf_hpc.workloads.registry import missing


class Request(NamedTuple):
    """What a user wants to run."""

    launcher: str
    """As ``RequestedLauncher``."""
    config: RunConfig
    nodes: int
    """How many nodes it begins with."""
    most: int
    """How many it takes at most."""
    hours: float
    dry: bool = False
    """Whether a launcher that is named need not be able to start it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The launcher that a request gets, and why; here the one for this machine."""

    request: Request
    why: str = ""
    launcher: str = "local"

    def settle(self) -> Settled:
        """Return the configuration with numbers. Raises UsageError: the nodes do not suit it."""
        if lacking := missing(self.request.config):  # Whom to ask how many there are.
            raise UsageError("; ".join(lacking))
        return settle_here(self.request.config, self.request.most)


class Backend(ABC):
    """Launches replicas. A scheduler's is the ``BACKEND`` of the module that its row names."""

    needs: tuple[str, ...] = ()
    """The names of the checks without which it launches nothing."""

    @abstractmethod
    def choose(self, request: Request) -> Choice:
        """Return the launcher for a request, once it can carry it out.

        For ``auto`` it is the one for this machine if the scheduler is not there.

        Raises:
            UsageError: the scheduler is not there, does not answer, or lacks what is requested.
        """

    @abstractmethod
    def launcher(
        self, manifest: RunManifest, paths: RunPaths, launch: int, retry: Retry
    ) -> Launcher:
        """Return what launches a run whose replicas were launched so often before."""

    @abstractmethod
    def dry_run(self, manifest: RunManifest, paths: RunPaths) -> str:
        """Return what would be submitted or started."""

    def runs_this_python(self, config: RunConfig, launcher: str) -> bool:
        """Return whether the nodes surely run this very Python, with its packages."""
        del config, launcher
        return True

    def wait(self) -> None:
        """Wait until the scheduler may be asked something."""
        return

    def release(self, manifest: RunManifest) -> str | None:
        """Give back the nodes of a run whose primary has died; return why that failed."""
        del manifest
        return None

    def checks(self) -> Iterable[Check]:
        """Look at what this machine has of the scheduler."""
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
    """Return what launches by the launcher of this name."""
    found = (load(each) for each in SCHEDULERS if launcher in each.launchers)
    return next(found, LocalBackend())


def choose_launcher(request: Request) -> Choice:
    """Return the launcher for a request, once it can carry it out.

    ``auto`` is the first scheduler that is there, else this machine, and says which and why.

    Raises:
        UsageError: the scheduler is not there, does not answer, or lacks what is requested.
    """
    if request.launcher != "auto":
        return backend_of(request.launcher).choose(request)
    choice = Choice(request)
    for scheduler in SCHEDULERS:
        choice = load(scheduler).choose(request)
        if choice.launcher != "local":
            break
    sys.stderr.write(f"aiperf: --launcher auto: {choice.launcher}: {choice.why}\n")
    return choice
