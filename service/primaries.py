"""Starting, stopping and resuming runs from the service: each by a process of its own."""

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
    """A process that was started."""

    def poll(self) -> int | None:
        """Return its exit status; None while it runs."""


class Primaries:
    """The primaries of this machine."""

    def plan(self, submission: Submission) -> RunManifest:
        """Return what a submission will be, if it can run: all that `aiperf start` checks.

        Raises:
            UsageError: it cannot, and why.
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
        """Start a run in a new folder. Raises UsageError where that cannot be made."""
        assert manifest.dataset is not None  # noqa: S101 -- planned
        paths = make_run_directory(manifest, folder, manifest.dataset)
        backend_of(manifest.launcher).wait()  # The clock of some runs starts with the run.
        return start_command("conduct", paths)

    def stop(self, paths: RunPaths) -> Process | None:
        """Ask a run to stop; a process ends one whose primary has died.

        Raises:
            UsageError: there is nothing to stop.
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
        """Ask the primary of a run that lasts for other nodes. Raises UsageError: it cannot be."""
        view = RunView.read(paths)
        request_nodes(view, nodes, "the service")

    def resume(self, paths: RunPaths) -> Process:
        """Go on with a run. Raises UsageError, RunDirectoryError: it cannot go on as it was."""
        check_resumable(paths.root)
        return start_command("resume", paths, ["--no-serve"])

    def busy(self) -> str | None:
        """Return which process computes on this machine now, for any run; None for none."""
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if "aiperf_hpc.replica" in words:
                return f"process {process.pid} computes on this machine, for another run"
        return None


def output_of(paths: RunPaths) -> str:
    """Return the last line that a primary in the background printed."""
    try:
        lines = paths.primary_log.read_text("utf-8", errors="backslashreplace").splitlines()
    except OSError:
        return ""
    return lines[-1].removeprefix("aiperf: ") if lines else ""
