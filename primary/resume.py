"""Going on with a run whose primary died: what must be true before anything is started again."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path

from aiperf_hpc import __version__
from aiperf_hpc.errors import RunDirectoryError, UsageError
from aiperf_hpc.history import RunHistory
from aiperf_hpc.manifest import RunManifest
from aiperf_hpc.paths import RunPaths
from aiperf_hpc.primary.prepare import describe_dataset, source_commit
from aiperf_hpc.primary.sessions import end_session

ALIVE_BEATS = 3.0
"""A primary on another host is taken for alive until it has missed so many heartbeats."""
LAG_SECONDS = 60.0
"""How late another host's records may become visible."""


def check_resumable(folder: Path) -> tuple[RunManifest, RunHistory]:
    """Return the run in ``folder`` and its records, if it can go on exactly as it was.

    Raises:
        RunDirectoryError: there is no run, it never started, or it has ended.
        UsageError: its primary is alive; or the configuration, the code or the dataset is not
            what it was. Nothing is started and nothing is changed.
    """
    paths = RunPaths(folder.resolve())
    manifest = RunManifest.load(paths)
    history = RunHistory(paths)
    history.refresh()
    if history.run_started is None:
        raise RunDirectoryError(f"{folder}: this run never started; use `aiperf start`")
    if history.run_ended is not None:
        raise RunDirectoryError(f"{folder}: this run has ended; see `aiperf report {folder}`")
    _check_primary_is_gone(history, manifest, folder)
    _check_same_code(manifest, folder)
    _check_same_configuration(history, paths, folder)
    _check_same_dataset(history, manifest, folder)
    return manifest, history


def end_leftovers(history: RunHistory) -> None:
    """Kill what an earlier primary of a local run left running on this machine.

    Without it the old replicas would go on beside the new ones; their records would be fenced,
    but they would take the cores.
    """
    host = socket.gethostname()
    for replica in history.replicas.values():
        started = replica.started
        if started is None or started.machine.host != host or started.job is not None:
            continue
        if str(history.paths.root) in _command(started.pid):
            with contextlib.suppress(ProcessLookupError):  # It ended by itself just now.
                end_session(os.getsid(started.pid))


def primary_is_gone(history: RunHistory) -> bool:
    """Return whether the run's primary was on this machine and is no longer."""
    last = history.last_start
    return last.host == socket.gethostname() and "aiperf" not in _command(last.pid)


def all_have_ended(history: RunHistory) -> bool:
    """Return whether every replica has said that it ended, or its process is gone from here."""
    return all(
        replica.started is None
        or replica.ended is not None
        or (
            replica.started.machine.host == socket.gethostname()
            and str(history.paths.root) not in _command(replica.started.pid)
        )
        for replica in history.replicas.values()
    )


def _check_primary_is_gone(history: RunHistory, manifest: RunManifest, folder: Path) -> None:
    last = history.last_start
    if last.host == socket.gethostname():
        if "aiperf" in _command(last.pid):
            raise UsageError(f"{folder}: its primary is running, as process {last.pid}")
        return
    quiet = time.time() - (history.primary_utc or 0.0)
    patience = ALIVE_BEATS * manifest.config.journal.heartbeat_seconds + LAG_SECONDS
    if quiet < patience:
        raise UsageError(
            f"{folder}: its primary on {last.host} wrote {quiet:.0f} s ago; it is taken for "
            f"alive until it has been silent for {patience:.0f} s"
        )


def _check_same_code(manifest: RunManifest, folder: Path) -> None:
    was = manifest.versions.get("aiperf-hpc"), manifest.commit
    now = __version__, source_commit()
    if was != now:
        raise UsageError(
            f"{folder}: it was started by aiperf-hpc {was[0]} (commit {was[1]}), this is "
            f"{now[0]} (commit {now[1]}); resume it with the version that started it"
        )


def _check_same_configuration(history: RunHistory, paths: RunPaths, folder: Path) -> None:
    recorded = history.last_start.manifest_sha256
    if recorded and recorded != paths.manifest_digest():
        raise UsageError(
            f"{folder}: run.yaml has changed since the run started; put back what it was, "
            "or start a new run"
        )


def _check_same_dataset(history: RunHistory, manifest: RunManifest, folder: Path) -> None:
    recorded = {r.dataset for r in history.replicas.values() if r.dataset is not None}
    now = describe_dataset(manifest.config.dataset)
    if recorded and recorded != {now}:
        raise UsageError(
            f"{folder}: dataset '{now.name}' is not what the run was started on; put that back, "
            "or start a new run"
        )


def _command(pid: int) -> str:
    """Return a process's command line; empty when there is none."""
    try:
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" "))
    except OSError:
        return ""
