"""Launching replicas on this machine, as a back end beside those of the schedulers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary.check import Check
from aiperf_hpc.primary.launchers.backend import Backend, Request
from aiperf_hpc.primary.launchers.base import Launcher, LocalLauncher, local_commands
from aiperf_hpc.primary.launchers.ranks import Settled, settle_here
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.storage import Retry
from aiperf_hpc.workloads.registry import missing


@dataclass(frozen=True, slots=True)
class LocalChoice:
    """The launcher for this machine. It is a ``Choice``."""

    request: Request
    why: str = ""
    launcher: str = "local"

    def settle(self) -> Settled:
        if lacking := missing(self.request.config):  # Whom to ask how many there are.
            raise UsageError("; ".join(lacking))
        return settle_here(self.request.config, self.request.most)


class LocalBackend:
    """Runs replicas as processes of this machine. It is a ``Backend``."""

    needs: tuple[str, ...] = ()

    def choose(self, request: Request) -> LocalChoice:
        return LocalChoice(request, launcher=request.launcher)

    def launcher(
        self, manifest: RunManifest, paths: RunPaths, launch: int, retry: Retry
    ) -> Launcher:
        del retry
        return LocalLauncher(manifest, paths, launch)

    def dry_run(self, manifest: RunManifest, paths: RunPaths) -> str:
        return "\n".join(shlex.join(c) for c in local_commands(manifest, paths).values())

    def runs_this_python(self, config: RunConfig, launcher: str) -> bool:
        del config, launcher
        return True

    def wait(self) -> None:
        pass  # Nobody is asked.

    def release(self, manifest: RunManifest) -> str | None:
        del manifest
        return None  # This machine is nobody's.

    def checks(self) -> Iterator[Check]:
        return iter(())


LOCAL: Backend = LocalBackend()
