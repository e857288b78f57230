"""Catalog of the runs in a folder, with a summary of each from the cheapest source.

For a finished run, only the report's summary is read. The journals are read if the run is active
or has no report.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from aiperf_hpc.errors import AIPerfError, RunDirectoryError, reason_of, restated
from aiperf_hpc.results.views.run_summary import RunSummary
from aiperf_hpc.results.views.run_view import RunState, RunStatus, RunView
from aiperf_hpc.run.journal import MOST_LINE_BYTES
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records.parsing import model_of
from aiperf_hpc.run.requests import Annotations, read_annotations
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.files import open_inside

RUNS = Path("runs")
"""Default folder of runs."""


class Annotated(Annotations):
    """Tags and note of a run, or the reason why they cannot be read."""

    annotations_error: str = ""
    """Reason why the tags and the note cannot be read; empty if they can."""


class ListedRun(Annotated, RunSummary):
    """Summary of a run in a list, with its tags and note."""


class AnnotatedStatus(Annotated, RunStatus):
    """Current status of a run, with its tags and note."""


class Unreadable(Value):
    """A run that cannot be listed, with the reason."""

    name: str
    """Name of the run."""
    reason: str
    """Reason why the run cannot be listed."""


class RunList(Value):
    """List of the runs in a folder."""

    runs: tuple[ListedRun, ...]
    """Runs, latest first; runs that have not started precede all others."""
    unreadable: tuple[Unreadable, ...]
    foreign: tuple[str, ...]
    """Folders that are not runs."""


def listed(summary: RunSummary, paths: RunPaths) -> ListedRun:
    """Return a summary with the present tags and note."""
    return ListedRun(**dict(summary), **_annotations(paths))


def annotated_status(view: RunView) -> AnnotatedStatus:
    """Return the status of a run with its tags and note."""
    return AnnotatedStatus(**dict(view.status()), **_annotations(view.paths))


def _annotations(paths: RunPaths) -> dict[str, object]:
    try:
        return dict(read_annotations(paths))
    except RunDirectoryError as error:
        return {"annotations_error": str(error)}


def read_runs(folder: Path) -> RunList:
    """Return the runs in a folder, including folders of repeated runs, or the folder's own run.

    Raises:
        RunDirectoryError: the folder cannot be read.
    """
    found, foreign = find_runs(folder)
    rows, unreadable = list[ListedRun](), list[Unreadable]()
    for name, paths in found.items():
        try:
            rows.append(_summary(paths, name))
        except (AIPerfError, OSError) as error:
            unreadable.append(Unreadable(name=name, reason=reason_of(error)))
    rows.sort(key=age_order, reverse=True)
    return RunList(runs=tuple(rows), unreadable=tuple(unreadable), foreign=foreign)


def _summary(paths: RunPaths, name: str) -> ListedRun:
    """Return a run's summary. Raises AIPerfError, OSError."""
    summary = RunSummary.read(paths, name)
    if summary is None or summary.state is not RunState.ENDED:
        summary = RunSummary.of(RunView.read(paths), name)
    return listed(summary, paths)


def latest_run(folder: Path) -> Path:
    """Return the most recently started run in a folder. Raises RunDirectoryError if there is
    none."""
    found, _ = find_runs(folder)
    if not found:
        raise RunDirectoryError(
            f"there is no run in {folder}; name a run, or its folder as DIR/last"
        )
    return max(found.values(), key=lambda paths: (_started(paths), paths.root)).root


def run_name(run: Path) -> str:
    """Return the name of a run as in `aiperf list`: its path, relative to ``runs`` if inside it.

    A repetition in ``runs/series/1`` has the name ``series/1``.
    """
    folder, root = RUNS.resolve(), run.resolve()
    if folder in root.parents:
        return str(root.relative_to(folder))
    return f"{root.parent.name}/{root.name}" if root.name.isdecimal() else root.name


def run_argument(run: Path) -> str:
    """Return the argument for a run in commands from this working directory: its name or its
    path."""
    return run_name(run) if RUNS.resolve() in run.resolve().parents else str(run)


def age_order(row: RunSummary) -> tuple[bool, float, str]:
    """Return a sort key by the start of a run; runs that have not started are last."""
    return row.started_utc is None, row.started_utc or 0.0, row.name


def find_runs(folder: Path) -> tuple[dict[str, RunPaths], tuple[str, ...]]:
    """Return the runs in a folder by name, and the names of folders that are not runs.

    The latter include unreadable folders.

    Raises:
        RunDirectoryError: the folder cannot be read.
    """
    if RunPaths(folder).manifest.exists():
        return {folder.resolve().name: RunPaths(folder)}, ()
    found, foreign = dict[str, RunPaths](), list[str]()
    for entry in _entries(folder):
        try:
            inside = dict(_runs_at(Path(entry.path), entry.name))
        except (OSError, RunDirectoryError):
            inside = {}  # An unreadable folder of another user must not block the list.
        found |= inside
        if not inside:
            foreign.append(entry.name)
    return found, tuple(foreign)


def _runs_at(folder: Path, name: str) -> Iterator[tuple[str, RunPaths]]:
    """Yield a folder if it is a run, or its subfolders that are runs: repetitions."""
    if RunPaths(folder).manifest.exists():
        yield name, RunPaths(folder)
        return
    for entry in _entries(folder):
        paths = RunPaths(Path(entry.path))
        if paths.manifest.exists():
            yield f"{name}/{entry.name}", paths


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the folders in a folder by name, without hidden ones."""
    what, advice = f"cannot list the runs in {folder}", "; name a folder of runs"
    with restated(what, RunDirectoryError, advice), os.scandir(folder) as entries:
        found = [e for e in entries if not e.name.startswith(".") and e.is_dir()]
    return sorted(found, key=lambda entry: entry.name)


def bytes_written(paths: RunPaths) -> int:
    """Return the total size of a run's journals in bytes. Raises OSError."""
    return sum(os.stat(journal).st_size for journal in paths.journal_files())


def _started(paths: RunPaths) -> float:
    """Return the start of a run in UTC seconds, or the creation of its folder before the start."""
    try:
        with open_inside(paths.root, paths.primary_journal) as journal:
            return model_of(journal.readline(MOST_LINE_BYTES)).utc
    except (OSError, ValidationError):
        return paths.manifest.stat().st_mtime
