"""Several runs: ``aiperf list`` and ``aiperf compare``; and ``aiperf annotate``."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from csv import DictWriter
from pathlib import Path
from typing import Annotated

from typer import Argument

from aiperf_hpc.analysis.layout import tables_as_lines
from aiperf_hpc.cli.output import say, say_csv, say_document, say_folded, say_result
from aiperf_hpc.cli.parameters import Json, Run, SomeRuns, Tags, flag, option
from aiperf_hpc.errors import UsageError
from aiperf_hpc.formatting import few, percent, quality, utc_text
from aiperf_hpc.results.table import NONE, Table
from aiperf_hpc.results.views.quantities import Quantity, View, quantities_in
from aiperf_hpc.results.views.run_catalog import (
    RUNS,
    ListedRun,
    RunList,
    RunSummary,
    read_runs,
    run_name,
)
from aiperf_hpc.results.views.run_view import RunState, outcome
from aiperf_hpc.run.annotations import read_annotations, write_annotations
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.streams import warn, window_columns

NARROW = ("run", "state", "score", "error", "valid")
"""Columns that are shown at any width; names of runs are never shortened."""
UNREADABLE = "unreadable"
"""State of a run whose records are damaged."""
INDENT = 2
"""Indentation of tables elsewhere."""


def list_runs(
    folder: Annotated[
        Path, Argument(metavar="[DIR]", parser=Path, help="A folder of runs.", show_default=False)
    ] = RUNS,
    json: Json = False,
    csv: Annotated[bool, flag("--csv", "Print CSV, with numbers in base units.")] = False,
    tag: Annotated[
        list[str] | None,
        option("--tag", "NAME", "List only runs with this tag; may be repeated."),
    ] = None,
) -> int:
    """List the runs in a folder, the latest first.

    DIR defaults to `runs`. Every command accepts the printed names. `last` is the latest run in
    `runs`, and DIR/last is the latest run in DIR. Times are in UTC. A run is valid in the division
    whose rules it satisfies. A run with damaged records is listed as unreadable, and the reason is
    printed below the table. In a narrow terminal, some columns are omitted.

    Examples:
      $ aiperf list
      $ aiperf list /shared/runs
      $ aiperf list --tag baseline
      $ aiperf list --csv > runs.csv
      $ aiperf status last
    """
    if json and csv:
        raise UsageError("--json and --csv are mutually exclusive")
    found = read_runs(folder)
    damaged = [
        f"{run.name}: {run.annotations_error}" for run in found.runs if run.annotations_error
    ]
    having = tuple(run for run in found.runs if set(tag or ()) <= set(run.tags))
    found = found.model_copy(update={"runs": having})
    if json:
        say_document(found.model_dump_json(indent=1))
        return 0
    unreadable = () if tag else tuple(run.name for run in found.unreadable)
    if csv:
        say_csv(_csv(found.runs, unreadable, folder))
    else:
        _say_table(found.runs, unreadable, folder, " and ".join(tag or ()))
    for line in (*damaged, *_remarks(found)):
        warn(line)
    return 0


def annotate(
    run: Run,
    tag: Tags = None,
    untag: Annotated[
        list[str] | None, option("--untag", "NAME", "A tag to remove; may be repeated.")
    ] = None,
    note: Annotated[
        str | None, option("--note", "TEXT", "A note on the run; an empty string removes it.")
    ] = None,
) -> int:
    """Change or show the tags and the note of a run.

    Tags and notes can change at any time, even after the run has ended. The report, the signature
    and the verification do not include them.

    Examples:
      $ aiperf annotate last --tag baseline --note "Before the new firmware."
      $ aiperf annotate last --untag baseline
    """
    paths = RunPaths(run)
    RunManifest.load(paths)
    before = read_annotations(paths)
    now = before.changed(tag or (), untag or (), note)
    if now != before:
        write_annotations(paths, now)
    say(f"{run_name(run)}:{'' if any(now.lines()) else ' no tags and no note'}")
    for line in now.lines():
        say_folded(f"  {line}", 4)
    return 0


def compare(runs: SomeRuns, json: Json = False) -> int:
    """Compare runs: their configuration, machines, scores, time and energy.

    For a folder of repeated runs, the means are compared and the coefficient of variation is
    printed. The exit status is 0 if the scores are comparable, else 1.

    Examples:
      $ aiperf compare runs/a runs/b
      $ aiperf compare runs/before last
      $ aiperf compare runs/before-repeated runs/after-repeated --json
    """
    from aiperf_hpc.results.comparison import compare as side_by_side
    from aiperf_hpc.results.comparison import read_groups, tables

    found = side_by_side(read_groups(runs))
    say_result(found, tables_as_lines(tables(found), window_columns()), as_json=json)
    return 0 if found.comparable else 1


def _say_table(
    runs: Sequence[ListedRun], unreadable: Sequence[str], folder: Path, tags: str
) -> None:
    if not runs and not unreadable:
        say(f"no run in {folder}{f' with the tag {tags}' if tags else ''}")
    columns = window_columns()
    table = _table(runs, unreadable, folder, columns)
    for line in tables_as_lines([table], columns + INDENT):
        say(line[INDENT:])


def _table(
    runs: Sequence[ListedRun], unreadable: Sequence[str], folder: Path, columns: int
) -> Table:
    """Return the table of runs, without optional columns that do not fit."""
    quantities = quantities_in(View.LIST)
    names = ["run", "state", "started", *quantities, "valid", "tags"]
    cells = [_cells(row, folder, quantities.values()) for row in runs]
    for run in unreadable:
        cells.append((_argument(run, folder), UNREADABLE, *[NONE] * (len(names) - 3), ""))
    rows = [dict(zip(names, each, strict=True)) for each in cells]
    if not any(row["tags"] for row in rows):
        names.remove("tags")
    for name in ("started", *reversed(quantities)):
        widths = [max(map(len, (each, *(row[each] for row in rows)))) for each in names]
        if name not in NARROW and sum(widths) + INDENT * (len(widths) - 1) > columns:
            names.remove(name)
    return Table(
        tuple(names), tuple(tuple(row[name] for name in names) for row in rows), words=(0,)
    )


def _csv(runs: Sequence[ListedRun], unreadable: Sequence[str], folder: Path) -> str:
    """Return the list as CSV: names of quantities, and their values in base units."""
    quantities = quantities_in(View.LIST).values()
    text = io.StringIO()
    names = ("run", "state", "started", *(q.name for q in quantities), "valid", "tags", "note")
    writer = DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    for row in runs:
        run, state, _, valid, tags = _cells(row, folder, ())
        values = (each.read(row) for each in quantities)
        started = utc_text(row.started_utc) or ""
        cells = (run, state, started, *values, valid, tags, row.note)
        writer.writerow(dict(zip(names, cells, strict=True)))
    for run in unreadable:
        writer.writerow({"run": _argument(run, folder), "state": UNREADABLE})
    return text.getvalue()


def _cells(row: ListedRun, folder: Path, quantities: Iterable[Quantity]) -> tuple[str, ...]:
    started = utc_text(row.started_utc)
    return (
        _argument(row.name, folder),
        f"{outcome(row.state, row.reason)}{', simulated' * row.simulated}",
        NONE if started is None else started[: len("2026-11-21 10:15")].replace("T", " "),
        *(_value(each, row) for each in quantities),
        row.division or ("yes" if row.valid else "no"),
        " ".join(row.tags),
    )


def _argument(name: str, folder: Path) -> str:
    """Return the argument for a listed run in commands."""
    return name if folder == RUNS else str(folder / name)


def _value(quantity: Quantity, row: RunSummary) -> str:
    """Return a headline figure, or a dash if a run has no result yet."""
    match quantity.name:
        case "seconds":
            return _hours(row)
        case "error":
            return _error(row)
        case "hosts" | "ops" if not quantity.read(row):
            return NONE
        case _:
            return quantity.text_of(row)


def _hours(row: RunSummary) -> str:
    """Return the elapsed hours of a run, and the total if it has not ended."""
    elapsed = f"{row.score.elapsed_seconds / 3600.0:.3g}"
    return elapsed if row.state is RunState.ENDED else f"{elapsed}/{row.hours:g}"


def _error(row: RunSummary) -> str:
    """Return the error or, for a workload without error, the best quality with its metric."""
    if row.score.error is not None or row.best_quality is None:
        return percent(row.score.error)
    return f"{quality(row.best_quality, row.metric)} {row.metric}"


def _remarks(found: RunList) -> Iterator[str]:
    for each in found.unreadable:
        yield f"{each.name} cannot be read: {each.reason}"
    if number := len(found.foreign):
        are = "folders are not runs" if number > 1 else "folder is not a run"
        yield f"{number} {are}: {few(found.foreign)}"
