"""What the primary asks of what launches replicas: this machine, or the back end of a scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from aiperf_hpc.config import RunConfig
from aiperf_hpc.primary.check import Check
from aiperf_hpc.primary.launchers.base import Launcher
from aiperf_hpc.primary.launchers.ranks import Settled
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.storage import Retry


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


class Choice(Protocol):
    """The launcher that a request gets."""

    @property
    def launcher(self) -> str: ...

    @property
    def why(self) -> str:
        """Why it is this one."""
        ...

    def settle(self) -> Settled:
        """Return the configuration with numbers. Raises UsageError: the nodes do not suit it."""
        ...


class Backend(Protocol):
    """Launches replicas. A scheduler's is the ``BACKEND`` of the module that its row names."""

    needs: tuple[str, ...]
    """The names of the checks without which it launches nothing."""

    def choose(self, request: Request) -> Choice:
        """Return the launcher for a request, once it can carry it out.

        For ``auto`` it is the one for this machine if the scheduler is not there.

        Raises:
            UsageError: the scheduler is not there, does not answer, or lacks what is requested.
        """
        ...

    def launcher(
        self, manifest: RunManifest, paths: RunPaths, launch: int, retry: Retry
    ) -> Launcher:
        """Return what launches a run whose replicas were launched so often before."""
        ...

    def dry_run(self, manifest: RunManifest, paths: RunPaths) -> str:
        """Return what would be submitted or started."""
        ...

    def runs_this_python(self, config: RunConfig, launcher: str) -> bool:
        """Return whether the nodes surely run this very Python, with its packages."""
        ...

    def wait(self) -> None:
        """Wait until the scheduler may be asked something."""
        ...

    def release(self, manifest: RunManifest) -> str | None:
        """Give back the nodes of a run whose primary has died; return why that failed."""
        ...

    def checks(self) -> Iterator[Check]:
        """Look at what this machine has of the scheduler."""
        ...
