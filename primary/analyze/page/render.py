"""An analysis as one page."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from aiperf_hpc.errors import RunDirectoryError
from aiperf_hpc.primary.analyze.analysis import (
    MEASURES,
    SECTIONS,
    Analysis,
    EntryMeasures,
    document,
    notes_on,
)
from aiperf_hpc.primary.analyze.card import Card
from aiperf_hpc.primary.analyze.document import as_json
from aiperf_hpc.primary.analyze.measured import Aggregate, Measure
from aiperf_hpc.primary.analyze.page import drawings
from aiperf_hpc.primary.analyze.page.table import Table
from aiperf_hpc.primary.analyze.page.tables import TABLES
from aiperf_hpc.primary.analyze.training_log import Entry
from aiperf_hpc.primary.file_system import require_writable
from aiperf_hpc.primary.report.plots.figure import Plot
from aiperf_hpc.primary.report.templates import page_templates
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.streams import without_controls, without_stand_ins

PACKAGE = "aiperf_hpc.primary.analyze.page"
FEW_NOTES, MOST_NOTES = 6, 200
"""Under one table: how many are shown at once, and how many at all; the JSON document has all."""


@dataclass(frozen=True, slots=True)
class Part:
    """One section of the page."""

    id: str
    title: str
    plots: tuple[Plot, ...]
    tables: tuple[Table, ...]


def write_page(analysis: Analysis, folder: Path) -> Path:
    """Write ``analysis.html`` and ``analysis.json`` into a folder; return the page's path.

    Raises:
        RunDirectoryError: the folder cannot be written.
    """
    return _write(folder, "analysis", render(analysis), document(analysis))


def _write(folder: Path, name: str, page: str, content: str) -> Path:
    require_writable(folder, f"the {name}", "--report")
    path = folder / f"{name}.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{name}.json", f"{content}\n")
        write_whole(path, without_controls(without_stand_ins(page)))
    except OSError as error:
        raise RunDirectoryError(f"cannot write {folder}: {error.strerror}") from None
    return path


def render(analysis: Analysis) -> str:
    """Return the page: one file that needs no other, and no script."""
    return (
        page_templates(PACKAGE)
        .get_template("analysis.html")
        .render(
            analysis=analysis,
            entries=_entries(analysis),
            measures=measures_table(analysis),
            overview=tuple(_overview(analysis)),
            parts=tuple(_parts(analysis)),
            definitions=[(m.title, m.unit, m.source, _definition(m)) for m in MEASURES],
            absent=[(s.title, analysis.missing[s.name]) for s in SECTIONS if s.name in
                    analysis.missing],
            most_notes=MOST_NOTES,
            few_notes=FEW_NOTES,
        )
    )  # fmt: skip


def write_card(card: Card, folder: Path) -> Path:
    """Write ``card.html`` and ``card.json`` into a folder; return the page's path.

    Raises:
        RunDirectoryError: the folder cannot be written.
    """
    page = page_templates(PACKAGE).get_template("card.html").render(card=card)
    return _write(folder, "card", page, as_json(card.model_dump(mode="json")))


def _overview(analysis: Analysis) -> Iterator[Plot]:
    yield from drawings.time_breakdown(analysis)
    yield from drawings.ops_over_time(analysis)


def _parts(analysis: Analysis) -> Iterator[Part]:
    """Yield the sections that have something in them."""
    for section in SECTIONS:
        value = analysis.sections.get(section.name)
        if value is not None:
            draw = drawings.DRAWINGS.get(section.name)
            plots = () if draw is None else tuple(draw(value))
            yield Part(section.name, section.title, plots, tuple(TABLES[section.name](value)))


def _entries(analysis: Analysis) -> Table:
    columns = (
        "entry", "benchmark", "round", "division", "trainings", "that count", "accelerators",
        "model", "notes",
    )  # fmt: skip
    rows = tuple(
        _entry_row(entry, of) for entry, of in zip(analysis.entries, analysis.measures, strict=True)
    )
    notes = tuple(
        f"{entry.name}: {note}"
        for entry, of in zip(analysis.entries, analysis.measures, strict=True)
        for note in notes_on(entry, of)
    )
    return Table(columns, rows, notes=notes)


def _entry_row(entry: Entry, of: EntryMeasures) -> tuple[str, ...]:
    system = entry.system
    counting = max((len(a.kept) for a in of.measures.values()), default=0)
    notes = len(notes_on(entry, of))
    return (
        entry.name,
        entry.benchmark,
        entry.round or "",
        entry.division or "",
        str(len(entry.logs)),
        str(counting) if of.valid else "too many failed",
        "" if system.accelerators is None else f"{system.accelerators:,}",
        system.accelerator or "",
        str(notes) if notes else "",
    )


def measures_table(analysis: Analysis) -> Table:
    """Return all measures that any entry has, side by side: a row an entry."""
    shown = [m for m in MEASURES if any(m.name in of.measures for of in analysis.measures)]
    columns = (
        "entry", *(f"{m.title}, {m.unit}" if m.unit and not m.si else m.title for m in shown)
    )  # fmt: skip
    rows = tuple(
        (of.entry, *(_figure(of.measures, measure) for measure in shown))
        for of in analysis.measures
    )
    return Table(columns, rows)


def _figure(measures: Mapping[str, Aggregate], measure: Measure) -> str:
    aggregate = measures.get(measure.name)
    if aggregate is None:
        return "–"
    mean = measure.said(aggregate.mean)
    return mean if aggregate.deviation is None else f"{mean} ± {measure.said(aggregate.deviation)}"


def _definition(measure: Measure) -> str:
    """Return the first paragraph of what defines a measure: its function's docstring."""
    text = inspect.getdoc(measure.of) or ""
    return " ".join(text.split("\n\n")[0].split())
