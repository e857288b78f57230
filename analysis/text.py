"""An analysis as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from aiperf_hpc.analysis.analysis import SECTIONS, Analysis, EntryMeasures
from aiperf_hpc.analysis.layout import WIDTH, tables_as_lines, wrapped
from aiperf_hpc.analysis.overview import entry_table, facts_of
from aiperf_hpc.analysis.training_log import Entry

MAX_NOTES = 20
"""Of one entry."""


def lines(analysis: Analysis, columns: int = WIDTH) -> Iterator[str]:
    """Yield the lines of an analysis: its entries with their measures, then each section."""
    for entry, measures in zip(analysis.entries, analysis.measures, strict=True):
        yield from _entry(entry, measures, columns)
        yield ""
    for section in SECTIONS if analysis.entries else ():
        yield section.title
        if section.name in analysis.sections:
            yield from tables_as_lines(section.tables(analysis.sections[section.name]), columns)
        else:
            yield from wrapped(f"not measured: {analysis.missing[section.name]}", columns)
        yield ""
    for unreadable in analysis.unreadable:
        yield f"not read: {unreadable.path}: {unreadable.reason}"


def _entry(entry: Entry, measures: EntryMeasures, columns: int) -> Iterator[str]:
    """Yield one entry: what it is, and its table without most of what is wrong, if that is much."""
    yield entry.name
    yield from wrapped(", ".join(facts_of(entry)), columns)
    table = entry_table(entry, measures)
    if (more := len(table.notes) - MAX_NOTES) > 0:
        said = f"! and {more} more, all of them with --json"
        table = table._replace(notes=(*table.notes[:MAX_NOTES], said))
    yield from tables_as_lines([table], columns)
