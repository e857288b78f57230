"""Tables of the entries of an analysis with their metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from aiperf_hpc.analysis.analysis import SECTIONS, Analysis, EntryMetrics, notes_on
from aiperf_hpc.analysis.layout import WIDTH, tables_as_lines, wrapped
from aiperf_hpc.analysis.metric import Aggregate, Metric, plus_minus
from aiperf_hpc.analysis.metrics import METRICS
from aiperf_hpc.analysis.metrics.mlperf_rules import staging_place
from aiperf_hpc.analysis.training_log import RANK, Entry, any_of
from aiperf_hpc.formatting import counted
from aiperf_hpc.results.table import NONE, Table, reasons

PLACES = {"inside": "inside the run", "outside": "outside the run", "both": "inside and outside"}


def entry_table(entry: Entry, of: EntryMetrics) -> Table:
    """Return the table of one entry: its metrics, missing metrics and problems."""
    metrics = _counted_by(entry.system.device)
    rows = tuple(
        _row(metric, of.metrics[metric.name]) for metric in metrics if metric.name in of.metrics
    )
    return Table(
        ("", "", ""),
        rows,
        notes=tuple(f"! {note}" for note in notes_on(entry, of)),
        missing=tuple(reasons(_missing(of, metrics), most=len(METRICS))),
        words=(1, 2),
    )


def _row(metric: Metric, aggregate: Aggregate) -> tuple[str, str, str]:
    scored, of = len(aggregate.scored), len(aggregate.values)
    fewer = f"{scored} of {of}" if scored < of else ""
    return metric.title, _figure(metric, aggregate) + metric.suffix, fewer


def _figure(metric: Metric, aggregate: Aggregate) -> str:
    return plus_minus(aggregate.mean, aggregate.deviation, metric.formatted)


def facts_of(entry: Entry) -> Iterator[str]:
    """Yield the description of an entry."""
    system = entry.system
    trainings = f"{len(entry.logs)} training{'s' * (len(entry.logs) != 1)}"
    machine = None if system.resources is None else system.resources.summary
    if machine is None and system.accelerators is not None:
        machine = counted(system.accelerators, "accelerator")
        machine += f" ({system.accelerator})" if system.accelerator else ""
    place = staging_place(entry)
    staged = None if place is None else f"staging {PLACES[place]}"
    facts = (trainings, machine, system.framework, staged)
    yield from (*_rules(entry), *(fact for fact in facts if fact))


def _rules(entry: Entry) -> Iterator[str]:
    """Yield the rules of an entry: round, division and scaling."""
    scaling = f"{entry.scenario} scaling" if entry.format == "mllog" else None
    yield from (part for part in (entry.round, entry.division, scaling) if part)


def _counted_by(device: str) -> list[Metric]:
    return [metric.counted_by(device) for metric in METRICS]


def _missing(of: EntryMetrics, metrics: Sequence[Metric]) -> dict[str, str]:
    """Return the reasons why metrics are missing, by their titles.

    A metric that qualifies another (its title begins with an ellipsis) is not reported as missing.
    """
    titles = {m.name: m.title for m in metrics if not m.title.startswith("…")}
    return {titles[name]: reason for name, reason in of.missing.items() if name in titles}


def entries_table(analysis: Analysis) -> Table:
    """Return the descriptions and problems of all entries, without empty columns."""
    columns = (
        "entry", "benchmark", "round", "trainings", "scored", "replicas", "hosts",
        "accelerators", "model", "framework", "staging", "notes",
    )  # fmt: skip
    pairs = list(zip(analysis.entries, analysis.metrics, strict=True))
    rows = [_entry_row(entry, of) for entry, of in pairs]
    shown = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    return Table(
        tuple(columns[place] for place in shown),
        tuple(tuple(row[place] for place in shown) for row in rows),
        notes=tuple(f"{entry.name}: {note}" for entry, of in pairs for note in notes_on(entry, of)),
        words=tuple(shown.index(place) for place in (1, 2, 8, 9, 10) if place in shown),
    )


def _entry_row(entry: Entry, of: EntryMetrics) -> tuple[str, ...]:
    system, place, notes = entry.system, staging_place(entry), len(notes_on(entry, of))
    return (
        entry.name,
        entry.benchmark,
        ", ".join(_rules(entry)),
        str(len(entry.logs)),
        str(_counting(of)) if of.valid else "too many failed",
        "" if system.resources is None else f"{system.resources.replicas:,}",
        "" if system.nodes is None else f"{system.nodes:,}",
        "" if system.accelerators is None else f"{system.accelerators:,}",
        f"CPU: {system.accelerator}" if system.device == RANK else system.accelerator or "",
        system.framework or "",
        "" if place is None else PLACES[place],
        str(notes) if notes else "",
    )


def metrics_table(analysis: Analysis) -> Table:
    """Return all metrics that any entry has, one row per entry."""
    metrics = _counted_by(any_of(entry.system.device for entry in analysis.entries))
    shown = [m for m in metrics if any(m.name in of.metrics for of in analysis.metrics)]
    columns = (
        "entry", *(f"{m.title}, {m.unit}" if m.unit and not m.si else m.title for m in shown)
    )  # fmt: skip
    rows = tuple((of.entry, *(_cell(of, metric) for metric in shown)) for of in analysis.metrics)
    return Table(columns, rows, missing=tuple(_missing_of_all(analysis.metrics, metrics)))


def _cell(of: EntryMetrics, metric: Metric) -> str:
    """Return a figure, with its number of training runs if other figures have more."""
    aggregate = of.metrics.get(metric.name)
    if aggregate is None:
        return NONE
    fewer = len(aggregate.scored) < _counting(of)
    return _figure(metric, aggregate) + f" (of {len(aggregate.scored)})" * fewer


def _counting(of: EntryMetrics) -> int:
    """Return the number of scored training runs."""
    return max((len(aggregate.scored) for aggregate in of.metrics.values()), default=0)


def _missing_of_all(entries: Sequence[EntryMetrics], metrics: Sequence[Metric]) -> Iterator[str]:
    """Yield the reasons why metrics are missing, grouping entries with the same reason."""
    missing: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for of in entries:
        for title, reason in _missing(of, metrics).items():
            missing[title][of.entry] = reason
    for title, why in missing.items():
        yield from (f"{title} of {note}" for note in reasons(why))


MAX_NOTES = 20
"""Maximum number of problems shown per entry."""


def lines(analysis: Analysis, columns: int = WIDTH) -> Iterator[str]:
    """Yield the lines of an analysis: its entries with their metrics, then each section."""
    for entry, metrics in zip(analysis.entries, analysis.metrics, strict=True):
        yield from _entry(entry, metrics, columns)
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


def _entry(entry: Entry, metrics: EntryMetrics, columns: int) -> Iterator[str]:
    """Yield the lines of one entry: its description, and its table with the first problems."""
    yield entry.name
    yield from wrapped(", ".join(facts_of(entry)), columns)
    table = entry_table(entry, metrics)
    if (more := len(table.notes) - MAX_NOTES) > 0:
        note = f"! and {more} more, all of them with --json"
        table = table._replace(notes=(*table.notes[:MAX_NOTES], note))
    yield from tables_as_lines([table], columns)
