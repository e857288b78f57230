"""All measures of all entries: each entry's own, and what is said of several together."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import SerializeAsAny

from aiperf_hpc.analysis.document import json_parts
from aiperf_hpc.analysis.entry_rules import kept_of, rule_problems
from aiperf_hpc.analysis.measured import Aggregate, Measure, NotMeasuredError
from aiperf_hpc.analysis.measures import time_to_solution
from aiperf_hpc.analysis.measures.score import ERROR, OPS, REGULATED
from aiperf_hpc.analysis.measures.time_to_accuracy import TIME_TO_ACCURACY
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.readers.base import Reading, Unreadable
from aiperf_hpc.analysis.sections import (
    communication,
    cost,
    inference,
    reference_convergence,
    repeatability,
    roofline,
    scaling_study,
    scaling_tables,
    thresholds,
    valid_flops,
    weak_scaling,
)
from aiperf_hpc.analysis.sections.contest import chosen
from aiperf_hpc.analysis.training_log import Entry, TrainingLog
from aiperf_hpc.formatting import few
from aiperf_hpc.results.table import Table
from aiperf_hpc.trial import Value


@dataclass(frozen=True, slots=True)
class Section:
    """What is said of several entries together, on one subject."""

    name: str
    """Its key in JSON."""
    title: str
    of: Callable[[Sequence[Entry], Options], Value]
    """Raises NotMeasuredError where no entry carries what it needs."""
    tables: Callable[[Any], Iterable[Table]]
    """Its value as people read it."""


class EntryMeasures(Value):
    """The measures of one entry."""

    entry: str
    measures: dict[str, Aggregate]
    missing: dict[str, str]
    """Why each of the other measures could not be made."""
    valid: bool = True
    """Whether the benchmark's rules admit a result of so many failed trainings."""
    problems: tuple[str, ...] = ()
    """What the benchmark's rules say against the entry."""


class Analysis(Value):
    """What came of all sources."""

    entries: tuple[Entry, ...]
    measures: tuple[EntryMeasures, ...]
    """Of each entry, in their order."""
    sections: dict[str, SerializeAsAny[Value]]
    missing: dict[str, str]
    """Why each of the other sections could not be made."""
    unreadable: tuple[Unreadable, ...]


MEASURES: tuple[Measure, ...] = (
    *time_to_solution.MEASURES,
    TIME_TO_ACCURACY,
    OPS,
    REGULATED,
    ERROR,
)
SECTIONS: tuple[Section, ...] = (
    Section("weak_scaling", "Weak scaling", weak_scaling.weak_scaling, weak_scaling.tables),
    Section(
        "reference_convergence",
        "Convergence beside the reference",
        reference_convergence.reference_convergence,
        reference_convergence.tables,
    ),
    Section("scaling_study", "Scaling", scaling_study.scaling_studies, scaling_tables.tables),
    Section("valid_flops", "Valid FLOPS", valid_flops.valid_flops_table, valid_flops.tables),
    Section(
        "threshold_sensitivity",
        "Time to accuracy over thresholds",
        thresholds.threshold_sensitivity,
        thresholds.tables,
    ),
    Section("cost_to_accuracy", "Cost to accuracy", cost.cost_to_accuracy, cost.tables),
    Section("inference", "Inference", inference.inference, inference.tables),
    Section(
        "repeatability",
        "Repeatability",
        partial(repeatability.repeatability, MEASURES),
        repeatability.tables,
    ),
    Section(
        "communication",
        "Speed-up and communication",
        communication.communication,
        communication.tables,
    ),
    Section("roofline", "Rooflines", roofline.rooflines, roofline.tables),
)


def analyze(reading: Reading, options: Options) -> Analysis:
    """Apply every measure and every section to what was read."""
    sections: dict[str, Value] = {}
    missing: dict[str, str] = {}
    entries = tuple(aimed(entry, options) for entry in reading.entries)
    for section in SECTIONS:
        try:
            sections[section.name] = section.of(entries, options)
        except NotMeasuredError as error:
            missing[section.name] = str(error)
    return Analysis(
        entries=entries,
        measures=tuple(measures_of(entry) for entry in entries),
        sections=sections,
        missing=missing,
        unreadable=reading.unreadable,
    )


def aimed(entry: Entry, options: Options) -> Entry:
    """Return an entry with the target that the user has named in place of the benchmark's own.

    It is the one place where that is done: all measures and sections read what logs have then.
    """
    wanted = chosen(options.targets, entry.benchmark)
    if not wanted:
        return entry
    logs = tuple(_aimed_log(log, wanted[-1]) for log in entry.logs)
    return entry.model_copy(update={"logs": logs})


def _aimed_log(log: TrainingLog, target: float) -> TrainingLog:
    if log.quality is None:
        return log
    named = {"target": target, "replaced": log.quality.target, "weighted_by": None}
    return log.model_copy(update={"quality": log.quality.model_copy(update=named)})


def document(analysis: Analysis) -> Iterator[str]:
    """Yield the parts of an analysis as JSON, without the courses of all trainings.

    The sources have these.
    """
    listed = {
        "entries": map(_entry_document, analysis.entries),
        "measures": (of.model_dump(mode="json") for of in analysis.measures),
    }
    return json_parts(listed | analysis.model_dump(mode="json", exclude=set(listed)))


def _entry_document(entry: Entry) -> dict[str, Any]:
    logs = (log.model_dump(mode="json", exclude=_COURSE) for log in entry.logs)
    dumped = entry.model_dump(mode="json", exclude={"logs"}) | {"logs": logs}
    return {name: dumped[name] for name in Entry.model_fields if name in dumped}


_COURSE = {"epochs", "evaluations"}


def measures_of(entry: Entry) -> EntryMeasures:
    """Apply every measure of a training to those of one entry, and aggregate each.

    All are aggregated over the same trainings, those that count by their time to solution.
    """
    values = {measure.name: _values(measure, entry) for measure in MEASURES}
    kept = kept_of(entry)
    measures: dict[str, Aggregate] = {}
    missing: dict[str, str] = {}
    for measure in MEASURES:
        of_each, reasons = values[measure.name]
        places = tuple(sorted(place for place in kept.places if of_each[place] is not None))
        if measure.name in time_to_solution.SCORES and not kept.valid:
            missing[measure.name] = kept.problems[0]
        elif places:
            measures[measure.name] = _aggregate(of_each, places)
        else:
            missing[measure.name] = next(iter(reasons), "none of its trainings counts")
    problems = (*kept.problems, *rule_problems(entry))
    return EntryMeasures(
        entry=entry.name, measures=measures, missing=missing, valid=kept.valid, problems=problems
    )


def _aggregate(values: Sequence[float | None], kept: tuple[int, ...]) -> Aggregate:
    known = [value for place in kept if (value := values[place]) is not None]
    return Aggregate(
        mean=statistics.fmean(known),
        deviation=statistics.stdev(known) if len(known) > 1 else None,
        values=tuple(values),
        kept=kept,
    )


def _values(measure: Measure, entry: Entry) -> tuple[list[float | None], list[str]]:
    """Return a measure of each training, and why it is missing where it is."""
    values: list[float | None] = []
    reasons = []
    for log in entry.logs:
        try:
            values.append(measure.of(log))
        except NotMeasuredError as error:
            values.append(None)
            reasons.append(str(error))
    return values, reasons


def notes_on(entry: Entry, of: EntryMeasures) -> list[str]:
    """Return what is wrong with an entry: by the rules, by itself, and in its logs."""
    return [*of.problems, *entry.problems, *_log_problems(entry)]


def _log_problems(entry: Entry) -> Iterator[str]:
    """Yield what is wrong with logs, the files that share a problem together."""
    files: dict[str, list[str]] = {}
    for log in entry.logs:
        for problem in log.problems:
            files.setdefault(problem, []).append(log.source.rpartition("/")[2])
    yield from (f"{few(names)}: {problem}" for problem, names in files.items())
