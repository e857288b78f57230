"""A ranking as one page of HTML that needs no other file, no network and no script."""

from __future__ import annotations

from pathlib import Path

from aiperf_hpc import __version__, formatting
from aiperf_hpc.analysis.rank.ranking import Ranking
from aiperf_hpc.analysis.rank.tables import power_of, system_of
from aiperf_hpc.errors import RunDirectoryError, reason_of
from aiperf_hpc.results.report.templates import page_templates
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.streams import without_controls, without_stand_ins
from aiperf_hpc.system.summary import times

PACKAGE = "aiperf_hpc.analysis.rank"


def write_page(ranking: Ranking, path: Path) -> None:
    """Write the page. Raises RunDirectoryError when it cannot be written."""
    try:
        write_whole(path, without_controls(without_stand_ins(render(ranking))))
    except OSError as error:
        raise RunDirectoryError(f"cannot write {path}: {reason_of(error)}") from None


def render(ranking: Ranking) -> str:
    """Return the page's text; the same ranking gives the same page."""
    templates = page_templates(PACKAGE)
    templates.filters |= {
        "si": formatting.si,
        "exact": formatting.exact,
        "percent": formatting.percent,
        "system": system_of,
        "power": power_of,
        "times": lambda model, count: times(count, model),
    }
    return templates.get_template("rank.html").render(ranking=ranking, version=__version__)
