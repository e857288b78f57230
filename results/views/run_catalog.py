"""Summary of a run for lists, metrics, comparisons and rankings; catalog of the runs in a folder.

For a finished run, only the report's summary is read. The journals are read if the run is active
or has no report.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from aiperf_hpc.errors import AIPerfError, RunDirectoryError, reason_of, restated
from aiperf_hpc.grouping import grouped
from aiperf_hpc.ops_counter.score import ScoreStatus
from aiperf_hpc.results.views.earlier_versions import renamed
from aiperf_hpc.results.views.quantities import Figures, figures_of
from aiperf_hpc.results.views.resources import Resources
from aiperf_hpc.results.views.run_view import RunState, RunStatus, RunView
from aiperf_hpc.results.views.telemetry import EnergyStatus
from aiperf_hpc.results.views.time_split import total_time
from aiperf_hpc.results.views.witnesses import UNWITNESSED, witness_line, witnesses_of
from aiperf_hpc.rules.rule import Division, Violation
from aiperf_hpc.run.annotations import Annotations, read_annotations
from aiperf_hpc.run.journal import MOST_LINE_BYTES
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records.parsing import model_of
from aiperf_hpc.system.summary import node_rows
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.files import bytes_inside, open_inside, parsed_json

LASTING = (RunState.STARTING, RunState.QUEUED, RunState.RUNNING, RunState.STOPPING)
"""States in which a run probably still writes records."""


class RunSummary(Value):
    """Summary of a run in a list."""

    name: str
    """Path of its folder, relative to the listed one."""
    run_id: str
    """Name of the run."""
    state: RunState
    """State of the run."""
    reason: str
    """Reason for the state; may be empty."""
    simulated: bool
    """Whether its time is simulated."""
    preset: str
    """Preset of the configuration."""
    workload: str
    """Name of the workload."""
    dataset: str
    """Name of the dataset."""
    launcher: str
    """Launcher of the replicas."""
    nodes_requested: int
    """Number of nodes that the user requested."""
    resources: Resources
    """Numbers of replicas, hosts and accelerators."""
    hours: float
    """Requested length in hours."""
    started_utc: float | None
    """Start of the run's clock in UTC seconds."""
    score: ScoreStatus
    """Current score; score at the last record if the run was interrupted."""
    metric: str
    """Name of the quality metric."""
    best_quality: float | None
    """Best quality that an evaluation observed."""
    division: Division | None = None
    """Division in which the result is official after the end of the run; None if in none."""
    violated_rules: tuple[str, ...]
    """Rules violated so far."""
    energy: EnergyStatus | None = None
    """Energy so far; None in summaries of earlier versions."""
    figures: Figures = {}
    """Every headline figure by its name; null if the run does not have it."""

    @property
    def valid(self) -> bool:
        return not self.violated_rules

    @classmethod
    def of(cls, view: RunView, name: str = "") -> RunSummary:
        """Return a run's summary; its folder's own name if none is given.

        Raises:
            GraphError: a trained graph is lost and cannot be regrown; nothing can be counted.
        """
        status, manifest = view.status(view.history.end_utc), view.manifest
        score = status.score if status.state in LASTING else view.final()
        values = {
            **RunSummary.fields_from(manifest.config),
            **RunSummary.fields_from(status),
            "name": name or view.paths.root.resolve().name,
            "dataset": manifest.config.dataset.name,
            "launcher": manifest.launcher,
            "started_utc": view.history.start_utc,
            "score": score,
            "energy": status.energy,
            "division": None if view.history.end_utc is None else view.judgement().division,
        }
        return RunSummary(**values).with_figures()

    @classmethod
    def read(cls, paths: RunPaths, name: str) -> RunSummary | None:
        """Return the summary in a final report, or None if there is no readable one."""
        try:
            written = parsed_json(bytes_inside(paths.root, paths.report_summary))
            found = cls.model_validate(renamed(written, "summary"))
        except (OSError, ValueError):
            return None  # The journals contain the same data.
        return found.model_copy(update={"name": name}).with_figures()

    def with_figures(self) -> RunSummary:
        """Return a copy with the figures of this version."""
        return self.model_copy(update={"figures": figures_of(self)})


class RunDetails(RunSummary):
    """Details of a run for comparisons and rankings: summary, settings and system."""

    settings: dict[str, Any]
    """Resolved configuration by dotted keys."""
    dataset_hashes: str
    """Name and SHA-256 of the dataset."""
    machine: dict[str, str]
    """Properties of its nodes."""
    versions: dict[str, str]
    """Versions of its software, and the commit."""
    time_fractions: dict[str, float]
    """Fraction of its replicas' elapsed time by phase."""
    system: str
    """Name of the system; empty if not stated."""
    submitter: str
    """Submitter of the result; empty if not stated."""
    witness: str = UNWITNESSED
    """Witnesses with the times of their first and last statements."""
    declared: tuple[str, ...] = ()
    """Settings that deviate from the closed division."""
    violations: tuple[Violation, ...]
    """Violated rules, each with its reason."""
    closed_violations: tuple[Violation, ...] = ()
    """Reasons why verification moved the run from the closed to the open division."""
    signed_by: str = ""
    """Key of the signature, and whether it was not compared with trusted keys; empty if the
    signature was not checked."""

    @property
    def energy_label(self) -> str:
        """Whether its energy is measured, estimated or absent."""
        return "absent" if self.energy is None else str(self.energy.label)

    @property
    def computed(self) -> bool:
        """Whether its engine computed anything."""
        return "engine" not in self.violated_rules

    @classmethod
    def of(cls, view: RunView, name: str = "") -> RunDetails:
        """Return a run's details.

        Raises:
            GraphError: a trained graph is lost and cannot be regrown; nothing can be counted.
        """
        summary = RunSummary.of(view, name)
        manifest, judgement = view.manifest, view.judgement()
        site, split = view.machine.summary().site, total_time(view, view.final().elapsed_seconds)
        ended = view.history.end_utc is not None
        return cls(
            **dict(summary),
            settings=flat(manifest.config.model_dump(mode="json")),
            dataset_hashes=_dataset_hashes(view),
            machine=_machine(view),
            versions={**manifest.versions, "commit": manifest.commit or ""},
            time_fractions={phase: each.fraction for phase, each in split.phases.items()},
            system="" if site is None else site.system_name,
            submitter="" if site is None else site.submitter,
            witness=witness_line(witnesses_of(view.history), ended=ended),
            declared=tuple(map(str, judgement.declared)),
            violations=tuple(judgement.violations),
        )


def flat(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return nested settings by dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{path}{key}.")
        else:
            found[f"{path}{key}"] = value
    return found


def _dataset_hashes(view: RunView) -> str:
    datasets = {r.dataset for r in view.history.replicas.values() if r.dataset is not None}
    return ", ".join(sorted(f"{each.name} {each.sha256[:12]}" for each in datasets))


def _machine(view: RunView) -> dict[str, str]:
    """Return the known properties of the nodes, grouped if equal; for older runs, only the
    processors."""
    groups = view.machine.summary().nodes
    rows = (row for group in groups for row in node_rows(group.node))
    found = grouped(row for row in rows if not row[0].startswith("file system"))
    if not groups:
        machines = (replica.machine for replica in view.history.replicas.values())
        found["processors"] = sorted({each.cpu for each in machines if each is not None})
    return {name: "; ".join(dict.fromkeys(values)) for name, values in found.items()}


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
