"""Report of a run as typed data, stored in ``report.json`` and shown by ``report.html``.

The report is computed only from the run directory, at the run's end or, before it, at the last
record. It does not depend on the current time, so equal records always give an equal
report.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.formatting import utc_text
from aiperf_hpc.objective import ACCURACY, QUALITY_METRICS
from aiperf_hpc.ops_counter.score import ScoreStatus
from aiperf_hpc.results.report.importance import HyperparameterImportance, importance_of
from aiperf_hpc.results.report.parts import (
    GraphReport,
    OperationSplit,
    Problems,
    ReplicaReport,
    Restart,
    RuleReport,
    StorageReport,
    TrialReport,
    best_graph,
    problems_of,
    replica_rows,
    restarts_of,
    split_operations,
    storage_report,
    trial_rows,
)
from aiperf_hpc.results.report.scaling import Scaling
from aiperf_hpc.results.report.search_replay import SearchReplay, replay_search
from aiperf_hpc.results.report.telemetry import TelemetryReport, telemetry_report
from aiperf_hpc.results.views.clock import ClockStatus
from aiperf_hpc.results.views.earlier_versions import in_this_version
from aiperf_hpc.results.views.nodes import ElasticityStatus, KindStatus
from aiperf_hpc.results.views.resources import Resources
from aiperf_hpc.results.views.run_view import BaselineStatus, RunView
from aiperf_hpc.results.views.telemetry import EnergyStatus
from aiperf_hpc.results.views.time_split import (
    NetworkWait,
    StepSplit,
    TimeSplit,
    network_wait,
    split_steps,
    total_time,
)
from aiperf_hpc.results.views.trials import ModelsStatus, TrainingTime
from aiperf_hpc.results.views.witnesses import WitnessStatus
from aiperf_hpc.rules.rule import Division, Violation
from aiperf_hpc.rules.validity.settings import DeclaredSetting
from aiperf_hpc.system.summary import MachineSummary
from aiperf_hpc.trial import DatasetInfo, Value


class Report(Value):
    """Report of a run, from its records."""

    schema_version: Literal[3] = 3
    run_id: str
    """Unique identifier of the run."""
    name: str
    """Name of the run, from the folder that it was started in."""
    final: bool
    """Whether the run has ended; before its end, the numbers are valid at its last record."""
    division: Division | None = None
    """Division in which the run is official; None if in none, and in reports of versions without
    divisions."""
    requested_division: Division | None = None
    """Requested division, if any."""
    declared: tuple[DeclaredSetting, ...] = ()
    """Settings that deviate from the closed division."""
    closed_violations: tuple[Violation, ...] = ()
    """Reasons why it is not official in the closed division, unless that division was requested."""
    valid: bool
    violations: tuple[Violation, ...]
    """Violated rules, each with a reason."""
    rules: tuple[RuleReport, ...] = ()
    """Outcome of every rule; none in reports of versions that stated only violated rules."""
    started: str | None
    ended: str | None
    """End of the run or, before it, its last record."""
    end_reason: str
    nodes_requested: int
    """Number of nodes that the user requested."""
    resources: Resources
    """Numbers of replicas, hosts and accelerators; reports of version 1 contain only the number of
    replicas."""
    hours: float
    """The hours that were requested; ``score.elapsed_seconds`` is the actual duration."""
    launcher: str
    command: str = ""
    """Command line that started the run; empty if it was not recorded."""
    metric: str = ACCURACY.name
    """Name of the run's quality metric."""
    score: ScoreStatus
    baseline: BaselineStatus | None = None
    """Baseline quality of a constant predictor; None in runs with a search, and in reports of
    versions that did not measure it."""
    error_unavailable_reason: str = ""
    """Reason why there is no error and no regulated score; empty if there is one."""
    series: tuple[ScoreStatus, ...]
    """Score at every interval and at the end."""
    interval_hours: float
    operations: OperationSplit
    best: GraphReport | None
    time: TimeSplit
    """Time split summed over all replicas."""
    network_wait: NetworkWait | None = None
    """Time that accelerators waited for a network; None in runs without accelerators."""
    trainings: tuple[TrainingTime, ...] = ()
    """Time of each completed training in a run without a search."""
    models: ModelsStatus | None = None
    """Models of a run without a search: concurrent models and models per minute."""
    step: StepSplit | None = None
    """Time split of a training step; None if replicas have one rank."""
    replicas: tuple[ReplicaReport, ...]
    trials: tuple[TrialReport, ...]
    trials_by_state: dict[str, int]
    hyperparameter_importance: HyperparameterImportance | None = None
    """Importance of the hyperparameters; None in runs without HPO trials, and in reports of earlier
    versions."""
    search: SearchReplay
    """Predictions of the search for its candidates, and their outcome."""
    restarts: tuple[Restart, ...]
    """Restarts in chronological order; the clock continued during each."""
    clock: ClockStatus | None = None
    """Waiting times for nodes; None if the clock started with the run."""
    telemetry: TelemetryReport | None = None
    """Utilization, traffic and power of its nodes; None in reports of versions that did not record
    it."""
    witnesses: tuple[WitnessStatus, ...] = ()
    """Witnesses and timestamp authorities of the run."""
    storage: tuple[StorageReport, ...] = ()
    """Waits for storage of the primary and of replicas."""
    datasets: tuple[DatasetInfo, ...]
    versions: dict[str, str]
    commit: str | None
    config: RunConfig
    system: MachineSummary | None = None
    """System description from the reports of its processes; None in runs of older versions."""
    problems: Problems
    elasticity: ElasticityStatus | None = None
    """Changes of the number of nodes; None if it was constant."""
    kinds: tuple[KindStatus, ...] = ()
    """Contribution of each kind of node; none if all nodes were alike."""
    scaling: Scaling | None = None
    """Comparison with runs of other sizes, if such were given; not from the records of this run."""

    @property
    def best_quality(self) -> float | None:
        """Best quality that an evaluation observed."""
        return None if self.best is None else self.best.quality

    @property
    def energy(self) -> EnergyStatus | None:
        return None if self.telemetry is None else self.telemetry.energy

    @property
    def violated_rules(self) -> tuple[str, ...]:
        """Names of the violated rules."""
        return tuple(dict.fromkeys(each.rule for each in self.violations))

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_version(cls, data: Any) -> Any:  # noqa: ANN401 -- whatever was written
        return in_this_version(data)


def make_report(view: RunView) -> Report:
    """Return the report of the records that ``view`` has read.

    Raises:
        GraphError: a trained graph is lost and cannot be regrown, so that its operations
            cannot be counted.
        AIPerfError: operations of the graphs differ from those that the trials recorded.
    """
    history, manifest = view.history, view.manifest
    end = view.until
    final = view.final()
    split = split_operations(view, end)
    if split.total != final.operations:
        raise AIPerfError(
            f"the trials of {view.paths.root} recorded {final.operations:,} operations, their "
            f"graphs count {split.total:,}; `aiperf verify {view.paths.root}` names the trials"
        )
    status = view.status(end)
    trials = trial_rows(view, end)
    datasets = {r.dataset: None for r in history.replicas.values() if r.dataset is not None}
    values = {
        **Report.fields_from(status),
        **_judged(view),
        "name": manifest.title,
        "launcher": manifest.launcher,
        "command": manifest.command,
        "versions": manifest.versions,
        "commit": manifest.commit,
        "config": manifest.config,
        "final": history.end_utc is not None,
        "started": utc_text(history.start_utc),
        "ended": utc_text(None if history.start_utc is None else end),
        "end_reason": status.reason if history.end_utc is not None else "",
        "series": tuple(view.series.official()),
        "interval_hours": manifest.config.score.interval_hours,
        "operations": split,
        "best": best_graph(view, end),
        "time": total_time(view, final.elapsed_seconds),
        "network_wait": network_wait(history.replicas.values()),
        "trainings": view.training_times(end),
        "step": split_steps([t for r in history.replicas.values() for t in r.step_times]),
        "replicas": replica_rows(view, status, final.elapsed_seconds),
        "trials": trials,
        "hyperparameter_importance": importance_of(trials, QUALITY_METRICS[status.metric]),
        "search": replay_search(view),
        "restarts": restarts_of(view),
        "telemetry": telemetry_report(view, end, final.ops),
        "storage": tuple(storage_report(view, each) for each in status.storage),
        "datasets": tuple(datasets),
        "system": _system(view),
        "problems": problems_of(view, end, final.elapsed_seconds),
    }
    return Report(**values)


def _judged(view: RunView) -> dict[str, Any]:
    """Return the fields on divisions and rules."""
    judgement, requested = view.judgement(), view.manifest.division
    return {
        "division": judgement.division,
        "requested_division": None if requested is None else Division(requested),
        "declared": judgement.declared,
        "closed_violations": judgement.closed_violations,
        "valid": not judgement.violations,
        "violations": tuple(judgement.violations),
        "rules": tuple(map(RuleReport.of, judgement.results)),
    }


def _system(view: RunView) -> MachineSummary | None:
    machine = view.machine.summary()
    return machine if machine.nodes or machine.primary else None
