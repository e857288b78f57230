"""Primaries that start nothing, for tests of the queue."""

from __future__ import annotations

from pathlib import Path

from tests.support.run_factory import DATASET

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.primary.control.prepare import make_run_directory
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.service.run_queue import Primaries, Process
from aiperf_hpc.service.submission import Submission


class Played:
    """A primary that runs until it is told that it has ended."""

    def __init__(self) -> None:
        self.status: int | None = None

    def poll(self) -> int | None:
        return self.status


class FakePrimaries(Primaries):
    """Primaries that are started as far as the run directory."""

    def __init__(self) -> None:
        self.started: dict[str, Played] = {}
        self.commands: list[tuple[str, str]] = []
        self.other: str | None = None

    def plan(self, submission: Submission) -> RunManifest:
        config = submission.config()
        if config.preset == "cifar10":
            raise DatasetError("no CIFAR-10 at /data")
        launcher = submission.launcher.replace("auto", "local")
        number = len(self.started)
        return RunManifest(
            run_id=f"run-{number}", nodes=submission.nodes, hours=submission.hours,
            launcher=launcher, versions={}, commit=None, dataset=DATASET, config=config,
        )  # fmt: skip

    def start(self, manifest: RunManifest, folder: Path) -> Process:
        make_run_directory(manifest, folder, DATASET)
        return self.started.setdefault(folder.name, Played())

    def resume(self, paths: RunPaths) -> Process:
        self.commands.append(("resume", paths.root.name))
        return Played()

    def busy(self) -> str | None:
        return self.other
