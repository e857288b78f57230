"""The report of a run as typed data: what ``report.json`` holds and ``report.html`` shows.

Everything in it is computed from the run directory alone, at the run's end or, while it lasts,
at its last record. No clock of the machine that makes it goes in, so that the same records
always give the same report.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.formatting import utc_text
from aiperf_hpc.objective import ACCURACY
from aiperf_hpc.results.report.incidents import (
    Problems,
    Restart,
    StorageReport,
    problems_of,
    restarts_of,
    storage_report,
)
from aiperf_hpc.results.report.parts import (
    Broken,
    DeclaredSetting,
    GraphReport,
    OperationSplit,
    ReplicaReport,
    RuleReport,
    TrialReport,
    best_graph,
    replica_rows,
    split_operations,
    trial_rows,
)
from aiperf_hpc.results.report.scaling import Scaling
from aiperf_hpc.results.report.search_replay import SearchReplay, replay_search
from aiperf_hpc.results.report.telemetry import TelemetryReport, telemetry_report
from aiperf_hpc.results.views.clock import ClockStatus
from aiperf_hpc.results.views.energy import EnergyStatus
from aiperf_hpc.results.views.nodes import ElasticityStatus, KindStatus
from aiperf_hpc.results.views.resources import Resources
from aiperf_hpc.results.views.run_view import BaselineStatus, RunView
from aiperf_hpc.results.views.score import ScoreStatus
from aiperf_hpc.results.views.time_split import (
    NetworkWait,
    StepSplit,
    TimeSplit,
    network_wait,
    split_steps,
    total_time,
)
from aiperf_hpc.results.views.trainings import ModelsStatus, TrainingTime
from aiperf_hpc.results.views.witnesses import WitnessStatus
from aiperf_hpc.rules.rule import Division
from aiperf_hpc.system.summary import MachineSummary
from aiperf_hpc.trial import DatasetInfo, Value


class Report(Value):
    """A run, from its own records."""

    schema_version: Literal[2] = 2
    run_id: str
    """The run's identifier, which no other run has."""
    name: str
    """The run's name, of the folder that it was started in."""
    final: bool
    """Whether the run has ended; while it lasts, the numbers are those at its last record."""
    division: Division | None = None
    """The division in which the run is official; None where it is so in none, and in reports of
    versions without divisions."""
    asked_division: Division | None = None
    """The division that it was to be official in, where one was requested."""
    declared: tuple[DeclaredSetting, ...] = ()
    """The settings that are not as the closed division fixes them."""
    not_closed: tuple[Broken, ...] = ()
    """Why it is not official in the closed division, where another one was requested."""
    valid: bool
    invalid: tuple[Broken, ...]
    rules: tuple[RuleReport, ...] = ()
    """Every rule, kept or not; none in reports of versions that stated only what is not kept."""
    started: str | None
    until: str | None
    """The end of the run or, while it lasts, its last record."""
    end_reason: str
    nodes_requested: int
    """The number of nodes that the user requested."""
    resources: Resources
    """Its replicas, hosts and accelerators; of reports of version 1, its replicas alone."""
    hours: float
    """The hours that were requested; ``score.elapsed_seconds`` is what it took."""
    launcher: str
    command: str = ""
    """The command that started it, as it was typed; empty where that was not recorded."""
    measure: str = ACCURACY.name
    """The name of the run's measure of quality."""
    score: ScoreStatus
    baseline: BaselineStatus | None = None
    """What a predictor reaches that has learnt nothing; None where a network was searched for, and
    in reports of versions that did not measure it."""
    without_error: str = ""
    """Why there is no error, and so no regulated score; empty where there is."""
    series: tuple[ScoreStatus, ...]
    """The score at every interval, and at the end."""
    interval_hours: float
    operations: OperationSplit
    best: GraphReport | None
    time: TimeSplit
    """Where the time of all replicas together went."""
    network_wait: NetworkWait | None = None
    """How long accelerators waited for a network; None in runs without accelerators."""
    trainings: tuple[TrainingTime, ...] = ()
    """Where nothing was searched for: the time of each training that came to its end."""
    models: ModelsStatus | None = None
    """Where nothing was searched for: how many models were trained at once, and a minute."""
    step: StepSplit | None = None
    """Where the time of a training step went; None where replicas have one rank."""
    replicas: tuple[ReplicaReport, ...]
    trials: tuple[TrialReport, ...]
    trials_by_state: dict[str, int]
    search: SearchReplay
    """What the search expected of its candidates, and their outcome."""
    restarts: tuple[Restart, ...]
    """The restarts in order of time; the clock never stopped."""
    clock: ClockStatus | None = None
    """How long its nodes were waited for; None where its clock started with it."""
    telemetry: TelemetryReport | None = None
    """What its nodes did and drew; None in reports of versions that did not record it."""
    witnesses: tuple[WitnessStatus, ...] = ()
    """Who outside was asked to see the run go on."""
    storage: tuple[StorageReport, ...] = ()
    """The primary and the replicas that waited for storage."""
    datasets: tuple[DatasetInfo, ...]
    versions: dict[str, str]
    commit: str | None
    config: RunConfig
    system: MachineSummary | None = None
    """The machine, as its processes reported it; None in runs of older versions."""
    problems: Problems
    elasticity: ElasticityStatus | None = None
    """Nodes that came and went; None where the run had those that it began with."""
    kinds: tuple[KindStatus, ...] = ()
    """What each kind of node contributed; none where all nodes were alike."""
    scaling: Scaling | None = None
    """The run among others of other sizes, where they were named; not from its records."""

    @property
    def best_quality(self) -> float | None:
        """The best quality that an evaluation observed."""
        return None if self.best is None else self.best.quality

    @property
    def energy(self) -> EnergyStatus | None:
        return None if self.telemetry is None else self.telemetry.energy

    @property
    def broken(self) -> tuple[str, ...]:
        """The names of the violated rules."""
        return tuple(dict.fromkeys(each.rule for each in self.invalid))

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_version(cls, data: Any) -> Any:  # noqa: ANN401 -- whatever was written
        return as_of_now(data) if isinstance(data, dict) else data


def as_of_now(document: dict[str, Any]) -> dict[str, Any]:
    """Return a report.json as this version would write it; one of this version as it is.

    Before runs had measures, every report was of accuracies, of a dataset of labelled images.
    Version 1 had neither names nor ``resources``.

    Raises:
        ValueError: its configuration or a dataset is none.
    """
    if "nodes" in document:
        named: dict[str, Any] = {
            "name": document.get("run_id"),
            "nodes_requested": document["nodes"],
        }
        named["resources"] = {"replicas": len(document.get("replicas", ()))}
        kept = {key: value for key, value in document.items() if key != "nodes"}
        document = {**kept, **named, "schema_version": 2}
    if "measure" in document:
        return document
    best = document.get("best")
    trials = document.get("trials")
    return {
        **document,
        "measure": ACCURACY.name,
        "best": {**best, "quality": best.get("accuracy")} if isinstance(best, dict) else best,
        "trials": [_row_of_now(row) for row in trials] if isinstance(trials, list) else trials,
        "datasets": [
            DatasetInfo.model_validate(dataset).model_dump(mode="json")
            for dataset in document.get("datasets", ())
        ],
        "config": RunConfig.model_validate(document.get("config")).model_dump(mode="json"),
    }


def _row_of_now(row: object) -> object:
    if not isinstance(row, dict):
        return row
    return {**row, "best_quality": row.get("best_accuracy")}


def make_report(view: RunView) -> Report:
    """Return the report of what ``view`` has read.

    Raises:
        GraphError: a trained graph is lost and cannot be grown again, so that its operations
            cannot be counted.
        AIPerfError: the graphs count other operations than the trials recorded.
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
        "until": utc_text(None if history.start_utc is None else end),
        "end_reason": status.reason if history.end_utc is not None else "",
        "series": tuple(view.score()),
        "interval_hours": manifest.config.score.interval_hours,
        "operations": split,
        "best": best_graph(view, end),
        "time": total_time(view, final.elapsed),
        "network_wait": network_wait(history.replicas.values()),
        "trainings": view.training_times(end),
        "step": split_steps([t for r in history.replicas.values() for t in r.step_times]),
        "replicas": replica_rows(view, status, final.elapsed),
        "trials": trial_rows(view, end),
        "search": replay_search(view),
        "restarts": restarts_of(view),
        "telemetry": telemetry_report(view, end, final),
        "storage": tuple(storage_report(view, each) for each in status.storage),
        "datasets": tuple(datasets),
        "system": _system(view),
        "problems": problems_of(view, end, final.elapsed),
    }
    return Report(**values)


def _judged(view: RunView) -> dict[str, Any]:
    """Return the fields on divisions and rules."""
    judgement, requested = view.judgement(), view.manifest.division
    return {
        "division": judgement.division,
        "asked_division": None if requested is None else Division(requested),
        "declared": tuple(map(DeclaredSetting.of, judgement.declared)),
        "not_closed": tuple(map(Broken.of, judgement.not_closed)),
        "valid": not judgement.violations,
        "invalid": tuple(map(Broken.of, judgement.violations)),
        "rules": tuple(map(RuleReport.of, judgement.results)),
    }


def _system(view: RunView) -> MachineSummary | None:
    machine = view.machine.summary()
    return machine if machine.nodes or machine.primary else None
