"""An analysis as one page."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from aiperf_hpc.errors import RunDirectoryError
from aiperf_hpc.primary.analyze.analysis import (
    MEASURES,
    SECTIONS,
    Analysis,
    EntryMeasures,
    document,
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
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.streams import without_controls, without_stand_ins

FEW_NOTES, MOST_NOTES = 6, 200
"""Under one table: how many are shown at once, and how many at all; the JSON document has all."""


@dataclass(frozen=True, slots=True)
class Part:
    """One section of the page."""

    id: str
    title: str
    plots: tuple[Plot, ...]
    tables: tuple[Table, ...]
    missing: str = ""
    """Why there is nothing in it; empty where there is something."""


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
    parts = [part for part in _parts(analysis) if not part.missing]
    return (
        environment()
        .from_string(_resource("aiperf_hpc.primary.analyze.page", "analysis.html"))
        .render(
            analysis=analysis,
            css=style_sheet(),
            entries=_entries(analysis),
            measures=measures_table(analysis),
            overview=tuple(_overview(analysis)),
            parts=parts,
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
    page = (
        environment()
        .from_string(_resource("aiperf_hpc.primary.analyze.page", "card.html"))
        .render(card=card, css=style_sheet())
    )
    return _write(folder, "card", page, as_json(card.model_dump(mode="json")))


def style_sheet() -> Markup:
    """Return the style sheet of all pages of this package."""
    return Markup(_resource("aiperf_hpc.primary.report", "report.css"))  # noqa: S704 -- our own file


def environment() -> Environment:
    """Return the template settings: everything is escaped, and nothing undefined is ignored."""
    return Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def _resource(package: str, name: str) -> str:
    return (resources.files(package) / name).read_text("utf-8")


def _overview(analysis: Analysis) -> Iterator[Plot]:
    yield from drawings.time_breakdown(analysis)
    yield from drawings.ops_over_time(analysis)


def _parts(analysis: Analysis) -> Iterator[Part]:
    for section in SECTIONS:
        name, title = section.name, section.title
        if name in analysis.missing:
            yield Part(name, title, (), (), analysis.missing[name])
            continue
        value = analysis.sections[name]
        draw = drawings.DRAWINGS.get(name)
        plots = tuple(draw(value)) if draw is not None else ()
        yield Part(name, title, plots, tuple(TABLES[name](value)))


def _entries(analysis: Analysis) -> Table:
    columns = (
        "entry", "benchmark", "round", "division", "trainings", "that count", "accelerators",
        "model", "notes",
    )  # fmt: skip
    rows = tuple(
        _entry_row(entry, of) for entry, of in zip(analysis.entries, analysis.measures, strict=True)
    )
    notes = tuple(
        f"{entry.name}: {problem}"
        for entry, of in zip(analysis.entries, analysis.measures, strict=True)
        for problem in (*of.problems, *entry.problems, *_log_problems(entry))
    )
    return Table(columns, rows, notes=notes)


def _entry_row(entry: Entry, of: EntryMeasures) -> tuple[str, ...]:
    system = entry.system
    counting = max((len(a.kept) for a in of.measures.values()), default=0)
    problems = len(of.problems) + len(entry.problems) + len(tuple(_log_problems(entry)))
    return (
        entry.name,
        entry.benchmark,
        entry.round or "",
        entry.division or "",
        str(len(entry.logs)),
        str(counting) if of.valid else "too many failed",
        "" if system.accelerators is None else f"{system.accelerators:,}",
        system.accelerator or "",
        str(problems) if problems else "",
    )


def _log_problems(entry: Entry) -> Iterator[str]:
    """Yield what is wrong with logs, those with one problem together."""
    counts: dict[str, int] = {}
    for log in entry.logs:
        for problem in log.problems:
            counts[problem] = counts.get(problem, 0) + 1
    for problem, count in counts.items():
        yield problem if len(entry.logs) == 1 else f"{count} of {len(entry.logs)} logs: {problem}"


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
