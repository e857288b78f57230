"""Rendering of an analysis as one HTML page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from aiperf_hpc.analysis.analysis import SECTIONS, Analysis, document
from aiperf_hpc.analysis.card import Card
from aiperf_hpc.analysis.document import as_json
from aiperf_hpc.analysis.metrics import METRICS
from aiperf_hpc.analysis.overview import entries_table, metrics_table
from aiperf_hpc.analysis.page import plots
from aiperf_hpc.errors import RunDirectoryError, restated
from aiperf_hpc.results.report.plots.figure import Plot
from aiperf_hpc.results.report.templates import page_templates
from aiperf_hpc.results.table import Table
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.run.storage import require_writable
from aiperf_hpc.streams import without_controls, without_stand_ins

PACKAGE = "aiperf_hpc.analysis.page"
FEW_NOTES, MOST_NOTES = 6, 200
"""Remarks below a table: number shown directly, and in total; the JSON document has all."""


class Part(NamedTuple):
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
    with restated(f"cannot write {folder}", RunDirectoryError):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{name}.json", f"{content}\n")
        write_whole(path, without_controls(without_stand_ins(page)))
    return path


def render(analysis: Analysis) -> str:
    """Return the page as one self-contained file without scripts."""
    return (
        page_templates(PACKAGE)
        .get_template("analysis.html")
        .render(
            analysis=analysis,
            entries=entries_table(analysis),
            metrics=metrics_table(analysis),
            overview=(*plots.time_breakdown(analysis), *plots.ops_over_time(analysis)),
            parts=tuple(_parts(analysis)),
            definitions=METRICS,
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


def _parts(analysis: Analysis) -> Iterator[Part]:
    """Yield the nonempty sections."""
    for section in SECTIONS:
        value = analysis.sections.get(section.name)
        if value is not None:
            draw = plots.PLOTS.get(section.name)
            drawn = () if draw is None else tuple(draw(value))
            yield Part(section.name, section.title, drawn, tuple(section.tables(value)))
