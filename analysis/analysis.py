"""All metrics of all entries, and the sections that compare several entries."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from pydantic import SerializeAsAny

from aiperf_hpc.analysis.document import as_json
from aiperf_hpc.analysis.metric import Aggregate, measured, measured_each
from aiperf_hpc.analysis.metrics import METRICS
from aiperf_hpc.analysis.metrics.mlperf_rules import rule_problems, scored_runs
from aiperf_hpc.analysis.metrics.time_to_solution import SCORES
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.sections import (
    communication,
    cost,
    inference,
    reference_convergence,
    repeatability,
    roofline,
    scaling_study,
    thresholds,
    valid_flops,
    weak_scaling,
)
from aiperf_hpc.analysis.sections.contest import qualities_for
from aiperf_hpc.analysis.training_log import Entry, ReadResult, Unreadable
from aiperf_hpc.formatting import few
from aiperf_hpc.grouping import grouped
from aiperf_hpc.results.table import Table
from aiperf_hpc.trial import Value


class Section(NamedTuple):
    """A comparison of several entries on one subject."""

    name: str
    """Key of the section in JSON."""
    title: str
    compare: Callable[[Sequence[Entry], Options], Value]
    """Computes the section. Raises NotMeasuredError if no entry has the required data."""
    tables: Callable[[Any], Iterable[Table]]
    """Returns the tables of the section's value."""


class EntryMetrics(Value):
    """The metrics of one entry."""

    entry: str
    metrics: dict[str, Aggregate]
    missing: dict[str, str]
    """Reason why each of the other metrics is missing."""
    valid: bool = True
    """Whether the benchmark's rules permit a result with this number of failed training runs."""
    problems: tuple[str, ...] = ()
    """Violations of the benchmark's rules."""


class Analysis(Value):
    """The result of an analysis of all sources."""

    entries: tuple[Entry, ...]
    metrics: tuple[EntryMetrics, ...]
    """Metrics of each entry, in the order of the entries."""
    sections: dict[str, SerializeAsAny[Value]]
    missing: dict[str, str]
    """Reason why each of the other sections is missing."""
    unreadable: tuple[Unreadable, ...]


SECTIONS: tuple[Section, ...] = (
    Section("weak_scaling", "Weak scaling", weak_scaling.weak_scaling, weak_scaling.tables),
    Section(
        "reference_convergence",
        "Convergence compared with the reference",
        reference_convergence.reference_convergence,
        reference_convergence.tables,
    ),
    Section("scaling_study", "Scaling", scaling_study.scaling_studies, scaling_study.tables),
    Section("valid_flops", "Valid FLOPS", valid_flops.valid_flops_table, valid_flops.tables),
    Section(
        "threshold_sensitivity",
        "Time to accuracy over thresholds",
        thresholds.threshold_sensitivity,
        thresholds.tables,
    ),
    Section("cost_to_accuracy", "Cost to accuracy", cost.cost_to_accuracy, cost.tables),
    Section("inference", "Inference", inference.inference, inference.tables),
    Section("repeatability", "Repeatability", repeatability.repeatability, repeatability.tables),
    Section(
        "communication",
        "Speed-up and communication",
        communication.communication,
        communication.tables,
    ),
    Section("roofline", "Rooflines", roofline.rooflines, roofline.tables),
)


def analyze(logs: ReadResult, options: Options) -> Analysis:
    """Compute every metric and every section from the logs."""
    entries = tuple(with_target(entry, options) for entry in logs.entries)
    sections, missing = measured_each(
        SECTIONS, lambda section: (section.name, section.compare(entries, options))
    )
    return Analysis(
        entries=entries,
        metrics=tuple(map(metrics_of, entries)),
        sections=dict(sections),
        missing=missing,
        unreadable=logs.unreadable,
    )


def with_target(entry: Entry, options: Options) -> Entry:
    """Return an entry with the user's target in place of the benchmark's own.

    This is the only place that replaces targets; all metrics and sections read them from the logs.
    """
    targets = qualities_for(options.targets, entry.benchmark)
    if not targets:
        return entry
    logs = list(entry.logs)
    for place, log in enumerate(logs):
        if log.quality is not None:
            changed = {"target": targets[-1], "replaced": log.quality.target, "weighted_by": None}
            quality = log.quality.model_copy(update=changed)
            logs[place] = log.model_copy(update={"quality": quality})
    return entry.model_copy(update={"logs": tuple(logs)})


_CURVES = {"entries": {"__all__": {"logs": {"__all__": {"epochs", "evaluations"}}}}}


def document(analysis: Analysis) -> str:
    """Return an analysis as JSON, without the training curves."""
    return as_json(analysis.model_dump(mode="json", exclude=_CURVES))


def metrics_of(entry: Entry) -> EntryMetrics:
    """Compute every metric of an entry's training runs and aggregate it over the scored ones."""
    scored = scored_runs(entry)
    metrics: dict[str, Aggregate] = {}
    missing: dict[str, str] = {}
    for metric in METRICS:
        pairs = [measured(partial(metric.compute, log)) for log in entry.logs]
        values = [value for value, _ in pairs]
        runs = tuple(sorted(run for run in scored.indices if values[run] is not None))
        if metric.name in SCORES and not scored.valid:
            missing[metric.name] = scored.problems[0]
        elif runs:
            metrics[metric.name] = _aggregate(values, runs)
        else:
            reasons = (reason for _, reason in pairs if reason)
            missing[metric.name] = next(reasons, "none of its training runs is scored")
    problems = (*scored.problems, *rule_problems(entry))
    return EntryMetrics(
        entry=entry.name, metrics=metrics, missing=missing, valid=scored.valid, problems=problems
    )


def _aggregate(values: Sequence[float | None], runs: tuple[int, ...]) -> Aggregate:
    known = [value for run in runs if (value := values[run]) is not None]
    return Aggregate(
        mean=statistics.fmean(known),
        deviation=statistics.stdev(known) if len(known) > 1 else None,
        values=tuple(values),
        scored=runs,
    )


def notes_on(entry: Entry, of: EntryMetrics) -> list[str]:
    """Return the problems of an entry: rule violations, then problems of the entry and its logs."""
    return [*of.problems, *entry.problems, *_log_problems(entry)]


def _log_problems(entry: Entry) -> Iterator[str]:
    """Yield the problems of logs, grouping files with the same problem."""
    found = ((problem, log) for log in entry.logs for problem in log.problems)
    files = grouped((problem, log.source.rpartition("/")[2]) for problem, log in found)
    yield from (f"{few(names)}: {problem}" for problem, names in files.items())
