"""Summary of a run for lists, metrics, comparisons and rankings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiperf_hpc.ops_counter.score import ScoreStatus
from aiperf_hpc.results.grouping import grouped
from aiperf_hpc.results.views.earlier_versions import renamed
from aiperf_hpc.results.views.quantities import Figures, figures_of
from aiperf_hpc.results.views.resources import Resources
from aiperf_hpc.results.views.run_view import RunState, RunView
from aiperf_hpc.results.views.telemetry import EnergyStatus
from aiperf_hpc.results.views.time_split import total_time
from aiperf_hpc.results.views.witnesses import UNWITNESSED, witness_line, witnesses_of
from aiperf_hpc.rules.rule import Division, Violation
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.system.summary import node_rows
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.files import bytes_inside, parsed_json

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
