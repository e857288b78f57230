"""All runs in a folder: what a list shows of each, read as cheaply as that can be had.

Of a run that has ended, the report's summary is read and nothing else. All journals of a run are
read while it lasts, and where it has no report.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from aiperf_hpc.errors import AIPerfError, RunDirectoryError, reason_of
from aiperf_hpc.ops_counter.divisions import Division
from aiperf_hpc.results.views.resources import Resources
from aiperf_hpc.results.views.run_view import RunState, RunView, ScoreStatus
from aiperf_hpc.run.journal import MOST_LINE_BYTES
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import RECORD
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.files import bytes_inside, open_inside

RUNS = Path("runs")
"""Where runs are unless told otherwise."""
LASTING = (RunState.STARTING, RunState.QUEUED, RunState.RUNNING, RunState.STOPPING)
"""The states of a run that is likely to write on."""


class RunRow(Value):
    """A run in a list."""

    name: str
    """Its folder, below the one that is listed."""
    run_id: str
    state: RunState
    reason: str
    simulated: bool
    """Whether its time is that of a simulation."""
    preset: str
    workload: str
    dataset: str
    launcher: str
    nodes_requested: int
    """The number of nodes that the user requested."""
    resources: Resources
    """Its replicas, hosts and accelerators."""
    hours: float
    """The length that was asked for."""
    started_utc: float | None
    """When its clock started, UTC seconds."""
    score: ScoreStatus
    """The score now; at its last record where it writes no more and has no end."""
    measure: str
    """The name of its measure of quality."""
    best_quality: float | None
    """The best quality that an evaluation observed."""
    division: Division | None = None
    """The division in which its result stands, once it has ended; None where it does in none."""
    broken: tuple[str, ...]
    """The rules that it does not keep, so far."""

    @property
    def valid(self) -> bool:
        return not self.broken

    @classmethod
    def of(cls, view: RunView, name: str = "") -> RunRow:
        """Return a run's row; its folder's own name when none is given.

        Raises:
            GraphError: a trained graph is lost and cannot be grown again: nothing can be counted.
        """
        status, manifest = view.status(view.history.end_utc), view.manifest
        score = status.score if status.state in LASTING else ScoreStatus.of(view.final())
        return cls(
            name=name or view.paths.root.resolve().name,
            run_id=status.run_id,
            state=status.state,
            reason=status.reason,
            simulated=status.simulated,
            preset=manifest.config.preset,
            workload=manifest.config.workload,
            dataset=manifest.config.dataset.name,
            launcher=manifest.launcher,
            nodes_requested=status.nodes_requested,
            resources=status.resources,
            hours=status.hours,
            started_utc=view.history.start_utc,
            score=score,
            measure=status.measure,
            best_quality=status.best_quality,
            division=None if view.history.end_utc is None else view.judgement().division,
            broken=tuple(dict.fromkeys(rule for rule, _ in status.invalid)),
        )


class Unreadable(Value):
    """A run that cannot be listed, and why."""

    name: str
    reason: str


class RunList(Value):
    """The runs in a folder."""

    runs: tuple[RunRow, ...]
    """The latest first; those that have not started are before all others."""
    unreadable: tuple[Unreadable, ...]
    foreign: tuple[str, ...]
    """Folders that are no runs."""


@dataclass(slots=True)
class _Known:
    """What was read of a run."""

    view: RunView | None = None
    row: RunRow | None = None
    written: int = -1
    """Bytes of its journals when the row was made; all there will be once the run has ended."""


class RunCatalog:
    """The runs in a folder, and in those of its folders that have several runs.

    Threads may share it. What was read is kept: asked again, only what is new is read.
    """

    def __init__(self, folder: Path) -> None:
        """Take a folder of runs, or a run. Raises RunDirectoryError when it is none."""
        self.folder = folder
        _entries(folder)
        self._known: dict[tuple[str, int], _Known] = {}
        self._lock = threading.Lock()

    def list(self) -> RunList:
        """Return the runs as they are now."""
        with self._lock:
            found, foreign = find_runs(self.folder)
            names = {name: paths for name, paths in found.items() if paths.manifest.exists()}
            known, rows, unreadable = self._known, list[RunRow](), list[Unreadable]()
            self._known = {}
            for name, paths in names.items():
                try:
                    key = name, paths.manifest.stat().st_ino
                    each = self._known[key] = known.get(key) or _Known()
                    rows.append(_row(each, paths, name))
                except AIPerfError as error:
                    unreadable.append(Unreadable(name=name, reason=str(error)))
                except OSError as error:
                    unreadable.append(Unreadable(name=name, reason=reason_of(error)))
        rows.sort(key=age_order, reverse=True)
        return RunList(runs=tuple(rows), unreadable=tuple(unreadable), foreign=foreign)

    def paths(self, name: str) -> RunPaths:
        """Return the run of that name. Raises RunDirectoryError when there is none."""
        found, _ = find_runs(self.folder)
        if name not in found:
            raise RunDirectoryError(f"{self.folder} has no run {name}")
        return found[name]


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


def age_order(row: RunRow) -> tuple[bool, float, str]:
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


def _row(known: _Known, paths: RunPaths, name: str) -> RunRow:
    """Return a run's row, and keep what the next one needs. Raises AIPerfError, OSError."""
    if known.row is None and (ended := read_summary(paths)) is not None:
        known.row = ended.model_copy(update={"name": name})
    if known.row is not None and known.row.state is RunState.ENDED:
        return known.row
    written = bytes_written(paths)
    if known.row is None or known.view is not None or written != known.written:
        view = known.view or RunView(paths)
        view.refresh()
        known.row, known.written = RunRow.of(view, name), written
        known.view = view if known.row.state in LASTING else None
    return known.row


def read_summary(paths: RunPaths) -> RunRow | None:
    """Return what the final report says; None where there is none, or it cannot be read."""
    try:
        return RunRow.model_validate_json(bytes_inside(paths.root, paths.report_summary))
    except (OSError, ValidationError):
        return None  # The journals say the same.


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
