"""Starting, stopping and resuming of runs by the service, each in a separate process."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import psutil

from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary.control.elasticity import request_nodes
from aiperf_hpc.primary.control.prepare import (
    describe_dataset,
    make_manifest,
    make_run_directory,
    require_eligible,
)
from aiperf_hpc.primary.control.resume import check_resumable
from aiperf_hpc.primary.launchers.backend import backend_of
from aiperf_hpc.primary.programs import start_command
from aiperf_hpc.results.views.run_view import RunState, RunView
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.service.submission import Submission


class Process(Protocol):
    """A started primary process."""

    def poll(self) -> int | None:
        """Return the exit status, or None while the process is running."""


class Primaries:
    """Primary processes on this machine."""

    def plan(self, submission: Submission) -> RunManifest:
        """Return the prepared run of a submission, after all checks of `aiperf start`.

        Raises:
            UsageError: the run is impossible; the message states the reason.
        """
        config = submission.config()
        manifest = make_manifest(
            config,
            submission.nodes,
            submission.hours,
            submission.launcher,
            nodes_max=submission.nodes_max,
        )
        said = {"division": submission.division, "start_when": submission.start_when}
        manifest = manifest.model_copy(update=said)
        require_eligible(manifest)
        dataset = describe_dataset(config.dataset)
        require_eligible(manifest, dataset)
        return manifest.model_copy(update={"dataset": dataset})

    def start(self, manifest: RunManifest, folder: Path) -> Process:
        """Start a run in a new folder. Raises UsageError if the folder cannot be created."""
        assert manifest.dataset is not None  # noqa: S101 -- planned
        paths = make_run_directory(manifest, folder, manifest.dataset)
        backend_of(manifest.launcher).wait()  # The clock of some runs starts with the run.
        return start_command("conduct", paths)

    def stop(self, paths: RunPaths) -> Process | None:
        """Request the stop of a run; if its primary has died, start a process that ends the run.

        Raises:
            UsageError: the run is not active.
        """
        view = RunView.read(paths)
        state = view.status().state
        if state is RunState.ENDED:
            raise UsageError("the run has ended already")
        if view.history.run_started is None or view.manifest.simulated:
            raise UsageError("this run never started, or is simulated; there is nothing to stop")
        write_whole(paths.stop_request, "stopped by the service\n")
        lives = state in (RunState.QUEUED, RunState.RUNNING, RunState.STOPPING)
        return None if lives else start_command("stop", paths)

    def scale(self, paths: RunPaths, nodes: int) -> None:
        """Request another number of nodes of a running benchmark. Raises UsageError if
        impossible."""
        view = RunView.read(paths)
        request_nodes(view, nodes, "the service")

    def resume(self, paths: RunPaths) -> Process:
        """Resume a run. Raises UsageError or RunDirectoryError if it cannot be resumed."""
        check_resumable(paths.root)
        return start_command("resume", paths, ["--no-serve"])

    def busy(self) -> str | None:
        """Return a description of a process that executes a run on this machine, or None."""
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if "aiperf_hpc.replica" in words:
                return f"process {process.pid} computes on this machine, for another run"
        return None


def output_of(paths: RunPaths) -> str:
    """Return the last output line of a primary in the background."""
    try:
        lines = paths.primary_log.read_text("utf-8", errors="backslashreplace").splitlines()
    except OSError:
        return ""
    return lines[-1].removeprefix("aiperf: ") if lines else ""
