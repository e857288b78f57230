"""An analysis as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from aiperf_hpc.primary.analyze.analysis import (
    MEASURES,
    SECTIONS,
    Analysis,
    EntryMeasures,
    notes_on,
)
from aiperf_hpc.primary.analyze.entry_rules import staging_place
from aiperf_hpc.primary.analyze.layout import fitted, wrapped
from aiperf_hpc.primary.analyze.measured import Aggregate, Measure
from aiperf_hpc.primary.analyze.training_log import Entry

LABEL = 28
MAX_NOTES = 20
"""Of one entry."""


def lines(analysis: Analysis) -> Iterator[str]:
    """Yield the lines of an analysis: its entries with their measures, then each section."""
    for entry, measures in zip(analysis.entries, analysis.measures, strict=True):
        yield from _entry(entry, measures)
        yield ""
    for section in SECTIONS if analysis.entries else ():
        yield section.title
        if section.name in analysis.sections:
            for line in section.lines(analysis.sections[section.name]):
                yield from fitted(line)
        else:
            yield from wrapped(f"not measured: {analysis.missing[section.name]}")
        yield ""
    for unreadable in analysis.unreadable:
        yield f"not read: {unreadable.path}: {unreadable.reason}"


def _entry(entry: Entry, measures: EntryMeasures) -> Iterator[str]:
    """Yield one entry: its name, what it is, its measures, what is missing and what is wrong."""
    yield entry.name
    yield from wrapped(", ".join(_facts(entry)))
    for measure in MEASURES:
        if measure.name in measures.measures:
            yield _measured(measure, measures.measures[measure.name])
    yield from _missing(measures)
    notes = notes_on(entry, measures)
    for note in notes[:MAX_NOTES]:
        yield from wrapped(f"! {note}")
    if len(notes) > MAX_NOTES:
        yield f"  ! and {len(notes) - MAX_NOTES} more, all of them with --json"


def _facts(entry: Entry) -> Iterator[str]:
    trainings = f"{len(entry.logs)} training{'' if len(entry.logs) == 1 else 's'}"
    scaling = f"{entry.scenario} scaling" if entry.format == "mllog" else None
    system = entry.system
    machine = None
    if system.accelerators is not None:
        machine = f"{system.accelerators:,} accelerators"
        machine += f" ({system.accelerator})" if system.accelerator else ""
    place = staging_place(entry)
    staged = None if place is None else f"staging {place} the run"
    if place == "both":
        staged = "staging inside and outside the run"
    facts = (entry.round, entry.division, scaling, trainings, machine, system.framework, staged)
    yield from (fact for fact in facts if fact)


def _measured(measure: Measure, aggregate: Aggregate) -> str:
    value = measure.said(aggregate.mean)
    if aggregate.deviation is not None:
        value += f" ± {measure.said(aggregate.deviation)}"
    unit = f" {measure.unit}" if measure.unit and not measure.si else ""
    kept, of = len(aggregate.kept), len(aggregate.values)
    share = f"{kept} of {of}" if kept < of else ""
    return f"  {measure.title:<{LABEL}} {value + unit:<42} {share}".rstrip()


def _missing(measures: EntryMeasures) -> Iterator[str]:
    """Yield why measures are missing, those of one reason together.

    What qualifies another measure, and begins with an ellipsis, is not missed where it is not.
    """
    titles = {measure.name: measure.title for measure in MEASURES}
    reasons: dict[str, list[str]] = {}
    for name, reason in measures.missing.items():
        if not titles[name].startswith("…"):
            reasons.setdefault(reason, []).append(titles[name])
    for reason, named in reasons.items():
        yield from wrapped(f"- no {', '.join(named)}: {reason}")
