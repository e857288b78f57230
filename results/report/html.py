"""Report as a self-contained HTML page without other files, network access and scripts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

import yaml
from jinja2 import Environment

from aiperf_hpc import formatting
from aiperf_hpc.config import differences, preset_of
from aiperf_hpc.grouping import grouped
from aiperf_hpc.objective import QUALITY_METRICS, QualityMetric
from aiperf_hpc.ops_counter.score import ScoreStatus
from aiperf_hpc.results.report import ancestry
from aiperf_hpc.results.report.document import Report
from aiperf_hpc.results.report.parts import ReplicaReport, TrialReport
from aiperf_hpc.results.report.plots.figure import quality_color
from aiperf_hpc.results.report.plots.over_time import (
    every,
    interval_ops,
    nodes_plot,
    score_plots,
    telemetry_plots,
)
from aiperf_hpc.results.report.plots.scaling import scaling_plots
from aiperf_hpc.results.report.plots.search import (
    hyperparameters_plot,
    importance_plot,
    learning_plot,
    prediction_plot,
)
from aiperf_hpc.results.report.system import system_box
from aiperf_hpc.results.report.telemetry import NodeReport
from aiperf_hpc.results.report.templates import page_templates
from aiperf_hpc.results.report.timeline import PHASE_ORDER, lane, legend, phase_legend, ticks
from aiperf_hpc.results.table import NONE, Table, optional
from aiperf_hpc.results.views.clock import clock_lines
from aiperf_hpc.results.views.quantities import View, quantities_in
from aiperf_hpc.results.views.trials import model_lines, trials_text
from aiperf_hpc.results.views.witnesses import witness_line
from aiperf_hpc.rules.judgement import IF_ASSURED
from aiperf_hpc.trial import Machine

MOST_REPLICAS = 48
MOST_ROWS = 1000
MOST_POINTS = 60
MOST_CANDIDATES = 200
MOST_JOURNALS = 100
MOST_NODES = 100
"""Maximum numbers of replicas, rows, points, candidates, journal links and nodes on the page;
``report.json`` has all of them, except the links."""


def render(document: Report, fine: Sequence[ScoreStatus], journals: Sequence[str] = ()) -> str:
    """Return the page as one self-contained file without scripts.

    Args:
        document: report to show.
        fine: score at closely spaced times, for the curves.
        journals: paths of the run's journals, relative to its folder.
    """
    best = document.best.graph if document.best else None
    metric = QUALITY_METRICS[document.metric]
    trials = _kept(document.trials, metric)
    scale = _Scale.of(document.trials, metric)
    shown = sorted(document.replicas, key=lambda r: r.time.train_evaluate_fraction)[:MOST_REPLICAS]
    names = {replica.id for replica in shown}
    lanes = [lane(r.id, document) for r in document.replicas if r.id in names]
    return (
        _environment(metric)
        .get_template("report.html")
        .render(
            document=document,
            quantities=quantities_in(View.REPORT),
            metric=metric,
            if_assured=IF_ASSURED,
            plots=score_plots(fine, document.series),
            telemetry_plots=telemetry_plots(document.telemetry),
            queue=list(clock_lines(document.clock)),
            witness=witness_line(document.witnesses, ended=document.final),
            nodes_plot=nodes_plot(document.elasticity, document.score.elapsed_seconds),
            scaling_plots=scaling_plots(document.scaling.points) if document.scaling else [],
            models=model_lines(document.models, document.metric),
            trial_counts=trials_text(document.trials_by_state, ended=document.final),
            learning=learning_plot(
                document.trials, document.best.trial if document.best else None, metric
            ),
            effects=hyperparameters_plot(document.trials, metric),
            importance=importance_plot(document.hyperparameter_importance),
            nodes=node_table(document),
            most_nodes=MOST_NODES,
            journals=journals[:MOST_JOURNALS],
            more_journals=max(0, len(journals) - MOST_JOURNALS),
            preset=preset_of(document.config),
            differences=differences(document.config),
            prediction=prediction_plot(document.search.candidates),
            candidates=document.search.candidates[-MOST_CANDIDATES:],
            points=_points(document.series),
            time_order=PHASE_ORDER,
            replicas=[replica for replica in document.replicas if replica.id in names],
            lanes=lanes,
            legend=legend(lanes),
            phases=phase_legend(lanes),
            ticks=ticks(document.score.elapsed_seconds),
            trials=trials,
            numbers={trial.id: number for number, trial in enumerate(trials, 1)},
            tree=ancestry.rows(trials, best),
            scale=scale,
            machines=_machines(document),
            system=None if document.system is None else system_box(document.system),
            configuration=yaml.safe_dump(
                document.config.model_dump(mode="json"), sort_keys=False, width=88
            ),
        )
    )


class _Scale(NamedTuple):
    """Mapping of qualities to the color scale, which spans the qualities of the run's trials."""

    metric: QualityMetric
    worst: float
    best: float

    @classmethod
    def of(cls, trials: Iterable[TrialReport], metric: QualityMetric) -> _Scale:
        reached = [t.best_quality for t in trials if t.best_quality is not None]
        ordered = sorted(reached, key=metric.objective_value) or [0.0, 1.0]
        return cls(metric, ordered[0], ordered[-1])

    def color(self, quality: float) -> str:
        span = self.best - self.worst
        return quality_color((quality - self.worst) / span if span else 1.0)

    @property
    def steps(self) -> list[tuple[str, str]]:
        """Colors of the legend, from the worst to the best, with their quality."""
        span = self.best - self.worst
        values = [self.worst + span * i / 4 for i in range(5)] if span else [self.best]
        return [(self.color(value), self._words(value)) for value in values]

    def _words(self, value: float) -> str:
        if self.metric.error is not None:
            return formatting.percent(value, 1)
        return formatting.quality(value, self.metric.name)


def _kept(trials: Sequence[TrialReport], metric: QualityMetric) -> list[TrialReport]:
    """Return the trials that the page shows: all, or the best ones with their ancestors."""
    if len(trials) <= MOST_ROWS:
        return list(trials)

    def worth(trial: TrialReport) -> float:
        quality = trial.best_quality
        return -math.inf if quality is None else metric.objective_value(quality)

    by_id = {trial.id: trial for trial in trials}
    kept: set[str] = set()
    for trial in sorted(trials, key=worth, reverse=True):
        if len(kept) >= MOST_ROWS:
            break
        ancestor: str | None = trial.id
        while ancestor is not None and ancestor in by_id and ancestor not in kept:
            kept.add(ancestor)
            ancestor = by_id[ancestor].parent
    return [trial for trial in trials if trial.id in kept]


def _points(series: Sequence[ScoreStatus]) -> list[tuple[ScoreStatus, float]]:
    """Return evenly selected points of the score, including the last, each with the operations per
    second of its interval only."""
    step = max(1, -(-len(series) // MOST_POINTS))
    points = list(zip(series, interval_ops(series), strict=True))
    return every(points, step)


class MachineGroup(NamedTuple):
    """Replicas on hosts that differ only in their name and the assigned cores."""

    machine: Machine
    replicas: list[str]
    hosts: set[str]


def _machines(document: Report) -> list[MachineGroup]:
    groups: dict[str, MachineGroup] = {}
    for replica in document.replicas:
        if (machine := replica.machine) is not None:
            alike = machine.model_copy(update={"host": "", "cores": ()})
            key = f"{len(machine.cores)} {alike.model_dump_json()}"
            group = groups.setdefault(key, MachineGroup(machine, [], set()))
            group.replicas.append(replica.id)
            group.hosts.add(machine.host)
    return list(groups.values())


def _environment(metric: QualityMetric) -> Environment:
    """Return the templates with the filters of this page."""
    environment = page_templates()
    environment.filters |= {
        "si": formatting.si,
        "exact": formatting.exact,
        "percent": formatting.percent,
        "quality": lambda value: formatting.quality(value, metric.name),
        "duration": formatting.duration,
        "capital": lambda text: text[:1].upper() + text[1:],
        "size": formatting.size,
        "when": lambda text: text.replace("T", " ")[:19] + " UTC",
        "ranges": formatting.ranges,
        "shape": lambda sizes: " × ".join("any" if size is None else str(size) for size in sizes),
    }
    return environment


def node_table(document: Report) -> Table:
    """Return a row per node; columns without any value are omitted.

    A trial counts on the node of its first rank, a replica on that of its last attempt's.
    """
    telemetry = {node.host: node for node in document.telemetry.nodes} if document.telemetry else {}
    replicas = grouped((r.machine.host, r) for r in document.replicas if r.machine is not None)
    trials = grouped((trial.host, trial) for trial in document.trials if trial.host is not None)
    elapsed = document.score.elapsed_seconds
    rows = [
        {
            "Node": host,
            **_work(replicas.get(host, []), trials.get(host, []), elapsed),
            **_telemetry(telemetry.get(host)),
        }
        for host in dict.fromkeys((*replicas, *trials, *telemetry))
    ]
    columns = [name for name in (rows[0] if rows else ()) if any(r[name] != NONE for r in rows)]
    return Table(tuple(columns), tuple(tuple(row[name] for name in columns) for row in rows))


def _work(
    replicas: list[ReplicaReport], trials: list[TrialReport], elapsed: float
) -> dict[str, str]:
    done = sum(trial.operations for trial in trials)
    busy = [replica.time.train_evaluate_fraction for replica in replicas]
    return {
        "Replicas": f"{len(replicas):,}",
        "Trials": f"{len(trials):,}" if trials else NONE,
        "OPS": formatting.si(done / elapsed, "OPS") if trials and elapsed > 0.0 else NONE,
        "Train and evaluate": formatting.percent(fmean(busy), 1) if busy else NONE,
    }


def _telemetry(node: NodeReport | None) -> dict[str, str]:
    def value(name: str) -> float | None:
        return None if node is None else getattr(node, name)

    def bytes_of(name: str) -> str:
        return optional(lambda number: formatting.size(int(number)), value(name))

    return {
        "Sampled": optional(formatting.duration, value("sampled_seconds")),
        "CPU": optional("{:.1f}%".format, value("cpu_percent")),
        "Accelerators": optional("{:.1f}%".format, value("accelerator_percent")),
        "Max. memory": bytes_of("max_memory_bytes"),
        "Max. temperature": optional("{:.0f} °C".format, value("max_celsius")),
        "Mean power": optional(lambda watts: formatting.si(watts, "W"), value("watts")),
        "Energy": optional(lambda joules: formatting.si(joules, "J"), value("joules")),
        "Network": bytes_of("network_bytes"),
        "Disk": bytes_of("disk_bytes"),
    }
