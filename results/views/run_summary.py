"""A run in a few lines: what lists, metrics, comparisons and rankings show of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from aiperf_hpc.results.views.energy import EnergyStatus
from aiperf_hpc.results.views.quantities import Figures, figures_of
from aiperf_hpc.results.views.resources import Resources
from aiperf_hpc.results.views.run_view import RunState, RunView
from aiperf_hpc.results.views.score import ScoreStatus
from aiperf_hpc.results.views.time_split import total_time
from aiperf_hpc.results.views.witnesses import UNWITNESSED, witness_line, witnesses_of
from aiperf_hpc.rules.rule import Division
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.system.summary import node_rows
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.files import bytes_inside

LASTING = (RunState.STARTING, RunState.QUEUED, RunState.RUNNING, RunState.STOPPING)
"""The states of a run that is likely to write on."""


class RunSummary(Value):
    """A run in a list."""

    name: str
    """Its folder, below the one that is listed."""
    run_id: str
    """The run's own name."""
    state: RunState
    """Its state."""
    reason: str
    """Why it is in its state; may be empty."""
    simulated: bool
    """Whether its time is that of a simulation."""
    preset: str
    """The preset of the configuration."""
    workload: str
    """The workload."""
    dataset: str
    """The name of the dataset."""
    launcher: str
    """What starts the replicas."""
    nodes_requested: int
    """The number of nodes that the user requested."""
    resources: Resources
    """Its replicas, hosts and accelerators."""
    hours: float
    """The requested length in hours."""
    started_utc: float | None
    """When its clock started, UTC seconds."""
    score: ScoreStatus
    """The score now; at its last record if it writes no more and has no end."""
    measure: str
    """The name of its measure of quality."""
    best_quality: float | None
    """The best quality that an evaluation observed."""
    division: Division | None = None
    """The division in which its result is official, once it has ended; None if it is in none."""
    broken: tuple[str, ...]
    """The rules that it violates, so far."""
    energy: EnergyStatus | None = None
    """Its energy so far; None in summaries of earlier versions."""
    figures: Figures = {}
    """Every headline figure by its name; null if the run does not have it."""

    @property
    def valid(self) -> bool:
        return not self.broken

    @classmethod
    def of(cls, view: RunView, name: str = "") -> RunSummary:
        """Return a run's summary; its folder's own name if none is given.

        Raises:
            GraphError: a trained graph is lost and cannot be grown again: nothing can be counted.
        """
        status, manifest = view.status(view.history.end_utc), view.manifest
        score = status.score if status.state in LASTING else ScoreStatus.of(view.final())
        values = {
            **RunSummary.fields_from(manifest.config),
            **RunSummary.fields_from(status),
            "name": name or view.paths.root.resolve().name,
            "dataset": manifest.config.dataset.name,
            "launcher": manifest.launcher,
            "started_utc": view.history.start_utc,
            "score": score,
            "division": None if view.history.end_utc is None else view.judgement().division,
        }
        return RunSummary(**values).with_figures()

    @classmethod
    def read(cls, paths: RunPaths, name: str) -> RunSummary | None:
        """Return the summary in a final report; None if there is none that can be read."""
        try:
            found = cls.model_validate_json(bytes_inside(paths.root, paths.report_summary))
        except (OSError, ValidationError):
            return None  # The journals have the same.
        return found.model_copy(update={"name": name}).with_figures()

    def with_figures(self) -> RunSummary:
        """Return the same with the figures of this version."""
        return self.model_copy(update={"figures": figures_of(self)})


class RunDetails(RunSummary):
    """A run as comparisons and rankings need it: its summary, its settings and its machine."""

    settings: dict[str, Any]
    """The resolved configuration, by dotted keys."""
    dataset_hashes: str
    """The dataset's name and SHA-256."""
    machine: dict[str, str]
    """The properties of its nodes."""
    versions: dict[str, str]
    """The versions of its software, and the commit."""
    time_shares: dict[str, float]
    """The fraction of its replicas' elapsed time by phase."""
    system: str
    """The system's name; empty if it was not stated."""
    submitter: str
    """Who submits it; empty if it was not stated."""
    witness: str = UNWITNESSED
    """Its witnesses, with their first and last statement."""
    declared: tuple[str, ...] = ()
    """The settings that are not as the closed division fixes them."""
    violations: tuple[str, ...]
    """The violated rules, each with its reason."""
    signed_by: str = ""
    """The key that signed it; empty if it is unsigned or the signature was not checked."""

    @property
    def energy_label(self) -> str:
        """Whether its energy is measured, estimated or absent."""
        return "absent" if self.energy is None else str(self.energy.label)

    @property
    def computed(self) -> bool:
        """Whether its engine computed anything."""
        return "engine" not in self.broken

    @classmethod
    def of(cls, view: RunView, name: str = "") -> RunDetails:
        """Return a run's details.

        Raises:
            GraphError: a trained graph is lost and cannot be grown again: nothing can be counted.
        """
        summary = RunSummary.of(view, name)
        manifest, judgement = view.manifest, view.judgement()
        site, split = view.machine.summary().site, total_time(view, view.final().elapsed)
        ended = view.history.end_utc is not None
        return cls(
            **dict(summary),
            settings=flat(manifest.config.model_dump(mode="json")),
            dataset_hashes=_dataset_hashes(view),
            machine=_machine(view),
            versions={**manifest.versions, "commit": manifest.commit or ""},
            time_shares={phase: each.share for phase, each in split.phases.items()},
            system="" if site is None else site.system_name,
            submitter="" if site is None else site.submitter,
            witness=witness_line(witnesses_of(view.history), ended=ended),
            declared=tuple(map(str, judgement.declared)),
            violations=tuple(map(str, judgement.violations)),
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
    """Return what is known of the nodes, equal ones together; of older runs, the processors."""
    groups = view.machine.summary().nodes
    found: dict[str, list[str]] = {}
    for group in groups:
        for name, value in node_rows(group.node):
            if not name.startswith("file system"):
                found.setdefault(name, []).append(value)
    if not groups:
        machines = (replica.machine for replica in view.history.replicas.values())
        found["processors"] = sorted({each.cpu for each in machines if each is not None})
    return {name: "; ".join(dict.fromkeys(values)) for name, values in found.items()}
