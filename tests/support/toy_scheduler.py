"""A scheduler of the tests' own: its back end, which ``toy_program.py`` adds a row for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from aiperf_hpc.primary.launchers.backend import Backend, Choice, Request
from aiperf_hpc.primary.launchers.base import Launcher, ReplicaState
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.storage import Retry
from aiperf_hpc.trial import JobPhase

NAME, JOB = "toy", "job-17"
PROGRAM = (sys.executable, "-m", "tests.support.toy_program")
"""Runs a module of the package with the row."""


class ToyLauncher(Launcher):
    """Starts the only replica of a run in a job."""

    name = NAME
    exact = True

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths

    def start(self) -> dict[str, str]:
        command = [*PROGRAM, "aiperf_hpc.replica", str(self._paths.root)]
        self._process = subprocess.Popen(
            [*command, "--replica", "r0"], env={**os.environ, "TOY_JOB": JOB}
        )
        return {"r0": JOB}

    def states(self) -> Mapping[str, ReplicaState]:
        status = self._process.poll()
        ended = JobPhase.FAILED if status else JobPhase.DONE
        return {"r0": ReplicaState(JobPhase.RUNNING if status is None else ended, status=status)}

    def ask_to_stop(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._process.wait()


class ToyBackend(Backend):
    """Launches jobs of the toy."""

    def choose(self, request: Request) -> Choice:
        return Choice(request, launcher=NAME)

    def launcher(
        self, manifest: RunManifest, paths: RunPaths, launch: int, retry: Retry
    ) -> Launcher:
        return ToyLauncher(paths)

    def dry_run(self, manifest: RunManifest, paths: RunPaths) -> str:
        return JOB


BACKEND = ToyBackend()
