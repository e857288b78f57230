"""HTML page of a ranking: one self-contained file without scripts or network access."""

from __future__ import annotations

from pathlib import Path

from aiperf_hpc import __version__
from aiperf_hpc.analysis.rank.ranking import Ranking
from aiperf_hpc.analysis.rank.tables import figure_of, system_of
from aiperf_hpc.errors import RunDirectoryError, restated
from aiperf_hpc.formatting import utc_text
from aiperf_hpc.results.report.templates import page_templates
from aiperf_hpc.results.views.quantities import View, quantities_in
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.streams import without_controls, without_stand_ins
from aiperf_hpc.system.summary import times

PACKAGE = "aiperf_hpc.analysis.rank"


def write_page(ranking: Ranking, path: Path) -> None:
    """Write the page. Raises RunDirectoryError if it cannot be written."""
    with restated(f"cannot write {path}", RunDirectoryError, caught=OSError):
        write_whole(path, without_controls(without_stand_ins(render(ranking))))


def render(ranking: Ranking) -> str:
    """Return the page's text, which is deterministic for a ranking."""
    templates = page_templates(PACKAGE)
    templates.filters |= {
        "system": system_of,
        "figure": figure_of,
        "day": lambda utc: str(utc_text(utc))[:10],
        "heading": lambda text: text[:1].upper() + text[1:],
        "times": lambda model, count: times(count, model),
    }
    return templates.get_template("rank.html").render(
        ranking=ranking, quantities=quantities_in(View.RANKING), version=__version__
    )
