"""Tables of a ranking, for a terminal and as a self-contained HTML page without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from aiperf_hpc import __version__
from aiperf_hpc.analysis.rank.ranking import Ranking
from aiperf_hpc.errors import RunDirectoryError, restated
from aiperf_hpc.formatting import si, utc_text
from aiperf_hpc.results.report.templates import page_templates
from aiperf_hpc.results.table import NONE, Table
from aiperf_hpc.results.views.quantities import Quantity, View, quantities_in
from aiperf_hpc.results.views.run_summary import RunDetails
from aiperf_hpc.rules.rule import Division
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.streams import without_controls, without_stand_ins
from aiperf_hpc.system.summary import times

WORDS = ("system", "accelerators", "signed by", "rules violated")
"""Titles of text columns."""
RANKED = "Official runs"
WITHOUT_A_NAME = "no name given"


def tables_of(ranking: Ranking) -> list[Table]:
    """Return the tables of ranked runs, unofficial runs and unranked runs."""
    ranked = [_ranked(division, entries) for division, entries in ranking.divisions.items()]
    none = Table(_columns("rank"), title=RANKED, notes=("No run.",))
    return [*(ranked or [none]), *_invalid(ranking.invalid), *_excluded(ranking)]


def _ranked(division: Division, entries: Sequence[RunDetails]) -> Table:
    return Table(
        columns := _columns("rank"),
        tuple((f"{place}", *_cells(each)) for place, each in enumerate(entries, 1)),
        title=f"{RANKED}, {division} division",
        words=_words(columns),
        notes=(
            *(f"{e.name} declares {'; '.join(e.declared)}." for e in entries if e.declared),
            *(f"{e.name} is not closed: {each}." for e in entries for each in e.closed_violations),
            *(f"{e.name}: {e.witness}." for e in entries),
        ),
    )


def _invalid(entries: Iterable[RunDetails]) -> Iterable[Table]:
    rows = tuple((*_cells(each), _rules(each)) for each in entries)
    if rows:
        title = "Unofficial runs: verified, without a rank"
        notes = ("Reasons: result.txt of the run, or --json.",)
        columns = (*_columns(), "rules violated")
        yield Table(columns, rows, title=title, words=_words(columns), notes=notes)


def _columns(*first: str) -> tuple[str, ...]:
    return (*first, "system", *quantities_in(View.RANKING), "signed by", "run")


def _words(columns: Sequence[str]) -> tuple[int, ...]:
    """Return the indices of the text columns after the first column."""
    return tuple(place for place, name in enumerate(columns) if place and name in WORDS)


def _rules(entry: RunDetails) -> str:
    """Return the names of the rules that a run violates."""
    return ", ".join(dict.fromkeys(each.rule for each in entry.violations))


def _excluded(ranking: Ranking) -> Iterable[Table]:
    rows = tuple((each.name, "; ".join(each.reasons)) for each in ranking.excluded)
    if rows:
        yield Table(("run", "reason"), rows, title="Not ranked", words=(1,))


def _cells(entry: RunDetails) -> tuple[str, ...]:
    models = entry.resources.accelerators.items()
    accelerators = ", ".join(times(count, model) for model, count in models) or "none"
    figures = (
        accelerators if quantity.name == "accelerators" else figure_of(quantity, entry)
        for quantity in quantities_in(View.RANKING).values()
    )
    return (system_of(entry), *figures, entry.signed_by, entry.name)


def figure_of(quantity: Quantity, entry: RunDetails) -> str:
    """Return a headline figure; the power with its label."""
    return power_of(entry) if quantity.name == "watts" else quantity.text_of(entry)


def power_of(entry: RunDetails) -> str:
    """Return the mean power, and whether it is an estimate or excludes parts of the machine."""
    if entry.energy is None or entry.energy.watts is None:
        return NONE
    watts = si(entry.energy.watts, "W")
    return watts if entry.energy_label == "measured" else f"{watts}, estimated"


def system_of(entry: RunDetails) -> str:
    """Return a system's name and submitter, or the names of its processors if it has no name."""
    named = ", ".join(filter(None, [entry.system, entry.submitter]))
    return named or ", ".join(entry.resources.processors) or WITHOUT_A_NAME


def write_page(ranking: Ranking, path: Path) -> None:
    """Write the page. Raises RunDirectoryError if it cannot be written."""
    with restated(f"cannot write {path}", RunDirectoryError, caught=OSError):
        write_whole(path, without_controls(without_stand_ins(render(ranking))))


def render(ranking: Ranking) -> str:
    """Return the page's text, which is deterministic for a ranking."""
    templates = page_templates("aiperf_hpc.analysis.rank")
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
