"""Checks and cleanup before a run whose primary died is resumed."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from pathlib import Path

from aiperf_hpc import __version__
from aiperf_hpc.errors import JournalError, UsageError
from aiperf_hpc.host.processes import arguments_of, end_session
from aiperf_hpc.integrity.release import FILES, package_digest
from aiperf_hpc.primary.control.claim import check_free
from aiperf_hpc.primary.control.prepare import describe_dataset
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import FileProblem, JournalDigestsRecord, ReplicaStarted

SCORED_WITHOUT = "the run is scored from the other records"
"""Remedy of a lost journal."""
LOST_UNKNOWN = "journals that were lost before are not recorded"
"""Consequence of unreadable journal digests."""
_JOURNAL = re.compile(
    r"replicas/(?!\.)[\w.-]{1,200}/\d{1,9}\.\d{1,9}/[\w-]{1,200}\.jsonl", re.ASCII
)
"""Name of a replica's journal, below the run directory."""


def check_resumable(folder: Path) -> tuple[RunManifest, RunHistory]:
    """Return the run in ``folder`` and its records, if it can be resumed unchanged.

    Raises:
        RunDirectoryError: there is no run, or it cannot be read.
        UsageError: the run never started, has ended or is simulated; the primary is alive; or the
            configuration, the code or the dataset has changed.
    """
    paths = RunPaths(folder.resolve())
    manifest = RunManifest.load(paths)
    history = RunHistory.read(paths)
    if manifest.simulated:
        raise UsageError(f"{folder}: a simulated run cannot be resumed; simulate it again")
    if history.run_started is None:
        raise UsageError(f"{folder}: this run never started; use `aiperf start`")
    if history.run_ended is not None:
        raise UsageError(f"{folder}: this run has ended; see `aiperf report {folder}`")
    check_free(history, manifest.config.journal.heartbeat_interval_seconds)
    _check_same_code(manifest, folder)
    _check_same_configuration(history, paths, folder)
    _check_same_dataset(history, manifest, folder)
    return manifest, history


def end_leftovers(history: RunHistory) -> None:
    """Kill the replicas of an earlier primary of a local run on this machine.

    Otherwise the old replicas would run concurrently with the new ones; their records would be
    fenced, but they would use the cores.
    """
    for replica in history.replicas.values():
        started = replica.started
        if started is not None and started.job is None and _runs_here(started, history.paths):
            with contextlib.suppress(ProcessLookupError):  # It has just exited by itself.
                end_session(os.getsid(started.pid))


def lost_before_resume(history: RunHistory) -> list[FileProblem]:
    """Return a record for each replica's journal that an earlier primary read and that is missing.

    Journals that it recorded as missing are omitted. If the journal digests cannot be read, a
    record of that is among them: the run can be resumed nevertheless. They may be damaged, so names
    that are not of a replica's journal are ignored.
    """
    paths, unreadable = history.paths, list[FileProblem]()
    known = set[Path]()
    try:
        for record in JournalReader(paths.journal_digests).read():
            if isinstance(record.event, JournalDigestsRecord):
                names = filter(_JOURNAL.fullmatch, record.event.new_journals)
                known |= {paths.root / name for name in names}
    except JournalError as error:
        file = str(paths.journal_digests.relative_to(paths.root))
        unreadable = [FileProblem(file=file, problem=str(error), remedy=LOST_UNKNOWN)]
    known |= {paths.replica_journal(each.id) for each in history.silent_replicas}
    known -= {paths.root / name for name in history.missing_journals}
    return unreadable + [
        FileProblem(
            file=str(path.relative_to(paths.root)),
            problem=f"{path}: the journal is missing; restore it",
            remedy=SCORED_WITHOUT,
        )
        for path in sorted(known)
        if not path.exists()
    ]


def all_have_ended(history: RunHistory) -> bool:
    """Return whether every replica has recorded its end, or its local process has exited."""
    return all(
        replica.started is None
        or replica.ended is not None
        or (
            replica.started.machine.host == socket.gethostname()
            and not _runs_here(replica.started, history.paths)
        )
        for replica in history.replicas.values()
    )


def _runs_here(started: ReplicaStarted, paths: RunPaths) -> bool:
    """Return whether a replica's process runs on this machine; its PID may have been reused."""
    return started.machine.host == socket.gethostname() and str(
        paths.root.resolve()
    ) in arguments_of(started.pid)


def _check_same_code(manifest: RunManifest, folder: Path) -> None:
    was = manifest.versions.get("aiperf-hpc"), manifest.versions.get(FILES)
    now = __version__, package_digest()
    if was != now:
        raise UsageError(
            f"{folder}: it was started by aiperf-hpc {_in_words(*was)}, this is "
            f"{_in_words(*now)}; resume it with the version that started it"
        )


def _in_words(version: str | None, files: str | None) -> str:
    return f"{version} (files {files[:12] if files else 'unknown'})"


def _check_same_configuration(history: RunHistory, paths: RunPaths, folder: Path) -> None:
    recorded = history.last_start.manifest_sha256
    if recorded and recorded != paths.manifest_digest():
        raise UsageError(
            f"{folder}: run.yaml has changed since the run started; restore it, or start a new run"
        )


def _check_same_dataset(history: RunHistory, manifest: RunManifest, folder: Path) -> None:
    recorded = {r.dataset for r in history.replicas.values() if r.dataset is not None}
    now = describe_dataset(manifest.config.dataset)
    if recorded and recorded != {now}:
        raise UsageError(
            f"{folder}: dataset '{now.name}' differs from the dataset of the run; restore "
            "the run's dataset, or start a new run"
        )
