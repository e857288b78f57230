"""All runs in a folder: what a list shows of each, read as cheaply as that can be had.

Of a run that has ended, the report's summary is read and nothing else. All journals of a run are
read while it lasts, and where it has no report.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from aiperf_hpc.errors import AIPerfError, RunDirectoryError, reason_of
from aiperf_hpc.results.views.run_summary import RunSummary
from aiperf_hpc.results.views.run_view import RunState, RunView
from aiperf_hpc.run.journal import MOST_LINE_BYTES
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import RECORD
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.files import open_inside

RUNS = Path("runs")
"""Where runs are unless told otherwise."""


class Unreadable(Value):
    """A run that cannot be listed, and why."""

    name: str
    """The run's name."""
    reason: str
    """Why not."""


class RunList(Value):
    """The runs in a folder."""

    runs: tuple[RunSummary, ...]
    """The latest first; those that have not started are before all others."""
    unreadable: tuple[Unreadable, ...]
    foreign: tuple[str, ...]
    """Folders that are no runs."""


def read_runs(folder: Path) -> RunList:
    """Return the runs in a folder, and in those of its folders that have several; or a run alone.

    Raises:
        RunDirectoryError: it cannot be read.
    """
    found, foreign = find_runs(folder)
    rows, unreadable = list[RunSummary](), list[Unreadable]()
    for name, paths in found.items():
        try:
            rows.append(_summary(paths, name))
        except AIPerfError as error:
            unreadable.append(Unreadable(name=name, reason=str(error)))
        except OSError as error:
            unreadable.append(Unreadable(name=name, reason=reason_of(error)))
    rows.sort(key=age_order, reverse=True)
    return RunList(runs=tuple(rows), unreadable=tuple(unreadable), foreign=foreign)


def _summary(paths: RunPaths, name: str) -> RunSummary:
    """Return a run's summary. Raises AIPerfError, OSError."""
    written = RunSummary.read(paths, name)
    if written is not None and written.state is RunState.ENDED:
        return written
    view = RunView.read(paths)
    return RunSummary.of(view, name)


def latest_run(folder: Path) -> Path:
    """Return the run in a folder that was started last. Raises RunDirectoryError for none."""
    found, _ = find_runs(folder)
    if not found:
        raise RunDirectoryError(
            f"there is no run in {folder}; name a run, or its folder as DIR/last"
        )
    return max(found.values(), key=lambda paths: (_started(paths), paths.root)).root


def run_name(run: Path) -> str:
    """Return a run's name, as `aiperf list` shows it: its folder's, below ``runs`` if it is there.

    A run that is one of several that repeat each other, ``runs/series/1``, is ``series/1``.
    """
    folder, root = RUNS.resolve(), run.resolve()
    if folder in root.parents:
        return str(root.relative_to(folder))
    return f"{root.parent.name}/{root.name}" if root.name.isdecimal() else root.name


def run_argument(run: Path) -> str:
    """Return what commands take for a run in this working directory: its name, or its path."""
    return run_name(run) if RUNS.resolve() in run.resolve().parents else str(run)


def age_order(row: RunSummary) -> tuple[bool, float, str]:
    """Return what orders runs by their start; those that have not started are the last."""
    return row.started_utc is None, row.started_utc or 0.0, row.name


def find_runs(folder: Path) -> tuple[dict[str, RunPaths], tuple[str, ...]]:
    """Return the runs in a folder by their names, and the names of folders that are none.

    Among the latter are folders in it that cannot be read.

    Raises:
        RunDirectoryError: it cannot be read.
    """
    if RunPaths(folder).manifest.exists():
        return {folder.resolve().name: RunPaths(folder)}, ()
    found, foreign = dict[str, RunPaths](), list[str]()
    for entry in _entries(folder):
        try:
            inside = dict(_runs_at(Path(entry.path), entry.name))
        except (OSError, RunDirectoryError):
            inside = {}  # Nobody else's folder is in the way of the others.
        found |= inside
        if not inside:
            foreign.append(entry.name)
    return found, tuple(foreign)


def _runs_at(folder: Path, name: str) -> Iterator[tuple[str, RunPaths]]:
    """Yield a folder that is a run, or those of its folders that are: runs that were repeated."""
    if RunPaths(folder).manifest.exists():
        yield name, RunPaths(folder)
        return
    for entry in _entries(folder):
        paths = RunPaths(Path(entry.path))
        if paths.manifest.exists():
            yield f"{name}/{entry.name}", paths


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the folders in a folder, but for hidden ones, by their names."""
    try:
        with os.scandir(folder) as entries:
            found = [e for e in entries if not e.name.startswith(".") and e.is_dir()]
    except OSError as error:
        raise RunDirectoryError(
            f"cannot list the runs in {folder}: {reason_of(error)}; name a folder of runs"
        ) from None
    return sorted(found, key=lambda entry: entry.name)


def bytes_written(paths: RunPaths) -> int:
    """Return the bytes of a run's journals. Raises OSError."""
    return sum(os.stat(journal).st_size for journal in paths.journal_files())


def _started(paths: RunPaths) -> float:
    """Return when a run started, UTC seconds; when its folder was made, where it has not yet."""
    try:
        with open_inside(paths.root, paths.primary_journal) as journal:
            return RECORD.validate_json(journal.readline(MOST_LINE_BYTES)).utc
    except (OSError, ValidationError):
        return paths.manifest.stat().st_mtime
