"""``result_0.txt``: a run as an MLPerf result log, one line per event.

A log is one training run in MLPerf's sense. Here that is the whole run, from start to end, with
each evaluation over all trials that was better than all previous. Inapplicable keys are not
claimed: the benchmark is not MLPerf's, caches are not cleared, and no time is excluded.
[mlcommons/logging: mlperf_logging/mllog, compliance_checker/mlp_parser]
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from operator import attrgetter

from aiperf_hpc.objective import QualityMetric
from aiperf_hpc.results.report.document import Report
from aiperf_hpc.results.views.quantities import View, quantities_in
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.history import Evaluation
from aiperf_hpc.system.description import SiteDescription

MARK = ":::MLLOG "
BENCHMARK = "aiperf_{workload}"
UNSAID = "SUBMISSION_{}_PLACEHOLDER"
"""MLPerf's placeholder for unknown values."""
STATUSES = {
    "Available on-premise": "onprem",
    "Available cloud": "cloud",
    "Preview": "preview",
}
"""MLPerf's log values for the availability of systems, by those of its system descriptions; all
others are research."""
START, END, POINT = "INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"
Metadata = dict[str, object]


def mllog_text(view: RunView, document: Report) -> str:
    """Return the log of the records that ``view`` has read, without an end event before the run's
    end."""
    start = view.history.start_utc
    if start is None:
        return "".join(event_line(0.0, POINT, key, value) for key, value in _settings(document))
    return "".join(_lines(view, document, start))


def _lines(view: RunView, document: Report, start: float) -> Iterator[str]:
    end, trials = view.until, view.history.trials.values()
    found = [each for trial in trials for each in trial.evaluations if each.utc <= end]
    for key, value in _settings(document):
        yield event_line(start, POINT, key, value)
    yield event_line(start, START, "init_start")
    yield event_line(start, END, "init_stop")
    yield event_line(start, START, "run_start")
    block: Metadata = {"first_epoch_num": 1, "epoch_count": max(len(found), 1)}
    yield event_line(start, START, "block_start", metadata=block)
    best: Evaluation | None = None
    for epochs, each in enumerate(sorted(found, key=attrgetter("utc", "trial", "epoch")), 1):
        if not each.beats(best):
            continue
        best = each
        at: Metadata = {"epoch_num": epochs, "trial": each.trial, "epoch_of_trial": each.epoch}
        yield event_line(each.utc, POINT, quality_key(each.quality_metric), each.quality, at)
    yield event_line(end, END, "block_stop", metadata=block)
    if document.final:
        status = "success" if document.valid else "aborted"
        yield event_line(end, END, "run_stop", metadata={"status": status})


def quality_key(metric: QualityMetric) -> str:
    """Return MLPerf's key of an evaluation, which depends on whether higher is better."""
    return "eval_error" if metric.goal == "minimize" else "eval_accuracy"


def _nodes(document: Report) -> Iterator[tuple[str, object]]:
    """Yield the number of nodes: of hosts, if a node was a part of a host's accelerators.

    Readers multiply it by the number of accelerators per node.
    """
    machine = document.system
    if machine is None or not machine.nodes:
        yield "number_of_nodes", document.nodes_requested
        return
    each, nodes = len(machine.nodes[0].node.accelerators), document.nodes_requested
    yield "number_of_nodes", min(nodes, machine.node_count) if each else nodes
    yield "accelerators_per_node", each


def _settings(document: Report) -> Iterator[tuple[str, object]]:
    """Yield the run's properties by MLPerf's keys; the score has keys of this benchmark."""
    config = document.config
    site = (document.system.site if document.system else None) or SiteDescription()
    data = document.datasets[0] if document.datasets else None
    division = document.division or site.division or "open"
    yield from submission(BENCHMARK.format(workload=config.workload), site, division)
    yield "submission_poc_name", document.run_id
    yield from _nodes(document)
    yield "number_of_ranks", len(document.replicas) * config.replica.ranks
    yield "seed", config.seed
    yield "global_batch_size", config.training.batch_size
    yield "opt_name", config.training.optimizer
    yield "opt_base_learning_rate", config.training.learning_rate
    yield "train_samples", data.train_samples if data else 0
    yield "eval_samples", data.validation_samples if data else 0
    for row in quantities_in(View.LOG).values():
        yield f"aiperf_{row.metric_name}", row.read(document)


def submission(
    benchmark: str, site: SiteDescription, division: str
) -> Iterator[tuple[str, object]]:
    """Yield the properties of a submission by MLPerf's keys."""
    yield "submission_benchmark", benchmark
    yield "submission_org", site.submitter or UNSAID.format("ORG")
    yield "submission_platform", site.system_name or UNSAID.format("PLATFORM")
    yield "submission_division", division
    yield "submission_status", STATUSES.get(site.status, "research")


def event_line(
    utc: float,
    kind: str,
    key: str,
    value: object = None,
    metadata: Metadata | None = None,
) -> str:
    """Return a line of a log."""
    event = {
        "namespace": "",
        "time_ms": round(1000 * utc),
        "event_type": kind,
        "key": key,
        "value": value,
        "metadata": metadata or {},
    }
    return f"{MARK}{json.dumps(event)}\n"
