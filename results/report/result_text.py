"""``result.txt``: the result of a run as plain text, in the style of HPL's output.

It has the configuration, one line of results, every rule with actual and required value,
and a last line for ``grep``: ``AIPERF RESULT:`` and a verdict, then ``name=value`` pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aiperf_hpc.config import Difference, differences, preset_of
from aiperf_hpc.formatting import duration, quality
from aiperf_hpc.objective import QUALITY_METRICS
from aiperf_hpc.results.report.document import Report
from aiperf_hpc.results.report.system import title_of
from aiperf_hpc.results.views.clock import clock_lines
from aiperf_hpc.results.views.quantities import Format, Quantity, View, quantities_in
from aiperf_hpc.results.views.telemetry import energy_line
from aiperf_hpc.results.views.trials import model_lines
from aiperf_hpc.results.views.witnesses import witness_line
from aiperf_hpc.rules.judgement import IF_ASSURED
from aiperf_hpc.rules.rule import Division
from aiperf_hpc.streams import without_controls
from aiperf_hpc.system.summary import machine_line

WIDE = 80
DOUBLE, SINGLE = "=" * WIDE, "-" * WIDE
LAST_LINE = "AIPERF RESULT:"
"""Prefix of the second last line."""
NONE = "none"

_FORMATS = {
    Format.COUNT: (8, "d"),
    Format.DURATION: (12, ".2f"),
    Format.SI: (16, ".6e"),
    Format.PERCENT: (11, ".4e"),
    Format.NUMBER: (16, ".6g"),
}
"""Minimum widths of columns, and their number formats."""


def result_text(document: Report) -> str:
    """Return the text of a report's ``result.txt``."""
    parts = (_head, _explanation, _configuration, _result_line, _division, _rules, _end)
    lines = (_one_line(line) for part in parts for line in part(document))
    return "".join(f"{line}\n" for line in lines)


def _one_line(text: str) -> str:
    """Return untrusted text without line breaks, so that it cannot forge a line."""
    return without_controls(" ".join(text.splitlines()))


def _head(document: Report) -> Iterator[str]:
    version = document.versions.get("aiperf-hpc", "of an unknown version")
    yield DOUBLE
    yield f"AIPerf-HPC {version}  --  automated machine learning as a benchmark of AI-HPC machines"
    yield f"Run {document.name}"
    if document.started:
        yield f"started {document.started}, {'ended' if document.final else 'until'} " + (
            document.ended or "-"
        )
    yield DOUBLE
    yield ""


def _explanation(_: Report) -> Iterator[str]:
    yield "OPS        : Operations of neural-network training and evaluation per second, counted"
    yield "             analytically, over all time from the run's start to its end: the score."
    yield "Error      : 1 - the best validation accuracy that a complete evaluation observed."
    yield "Regulated  : -ln(Error) * OPS."
    yield ""


def _configuration(document: Report) -> Iterator[str]:
    config = document.config
    yield "The following configuration was used:"
    yield ""
    yield from _pairs(_size(document))
    changed = [each for each in differences(config) if each.key != "preset"]
    yield ""
    if not changed:
        yield f"Differences from the preset {preset_of(config)}: none."
    else:
        yield f"Differences from the preset {preset_of(config)}:"
        yield ""
        yield from _pairs([(each.key, _change(each)) for each in changed])
    yield ""


def _size(document: Report) -> Iterator[tuple[str, str]]:
    config, machine = document.config, document.system
    ranks = config.replica.ranks
    if machine is not None and (title := title_of(machine.site)):
        yield "System", title
    if machine is not None and (line := machine_line(machine)):
        yield "Nodes are", line
    yield "Size", document.resources.summary
    yield "Nodes", f"{document.nodes_requested} requested, ranks of each replica: {ranks}"
    yield "Launcher", document.launcher
    yield "Hours", f"{document.hours:g} requested"
    yield from (("Queue", line) for line in clock_lines(document.clock))
    yield "Workload", config.workload
    yield "Dataset", ", ".join(each.name for each in document.datasets) or NONE
    yield "Engine", f"{config.engine.name}, {config.training.precision}"
    if document.command:
        yield "Command", document.command
    yield "Commit", document.commit or "unknown"
    yield "Witness", witness_line(document.witnesses, ended=document.final)


def _pairs(rows: Sequence[tuple[str, str]] | Iterator[tuple[str, str]]) -> Iterator[str]:
    listed = list(rows)
    width = max(len(name) for name, _ in listed)
    yield from (f"{name:<{width}} : {value}" for name, value in listed)


def _change(change: Difference) -> str:
    value, preset = (NONE if each is None else each for each in (change.value, change.preset))
    return f"{value} (preset: {preset})"


def _result_line(document: Report) -> Iterator[str]:
    columns = quantities_in(View.RESULT_LINE)
    widths = [max(_FORMATS[row.format][0], len(head) + 1) for head, row in columns.items()]
    values = [_number(row, row.read(document)) for row in columns.values()]
    yield DOUBLE
    for first, cells in (("T/V", list(columns)), ("AIPERF", values)):
        yield f"{first:<8}" + "".join(f"{c:>{w}}" for c, w in zip(cells, widths, strict=True))
        yield SINGLE
    yield from _reached(document)
    if trained := model_lines(document.models, document.metric):
        yield from (line[0].upper() + line[1:] for line in trained)
        yield SINGLE
    if document.telemetry is not None and (energy := energy_line(document.telemetry.energy)):
        yield energy[0].upper() + energy[1:]
        yield SINGLE


def _number(quantity: Quantity, value: float | None) -> str:
    return NONE if value is None else format(value, _FORMATS[quantity.format][1])


def _reached(document: Report) -> Iterator[str]:
    """Yield the best quality with the baseline quality of a constant predictor."""
    if document.baseline is None:
        return
    label = QUALITY_METRICS[document.metric].label
    best = None if document.best is None else document.best.quality
    beside = quality(document.baseline.quality, document.metric)
    said = f"The best {label}: {quality(best, document.metric)}"
    yield f"{said}; that of {document.baseline.predictor}: {beside}"
    yield SINGLE


def _division(document: Report) -> Iterator[str]:
    """Yield the division of the result, and its differences from the closed one."""
    if not (document.division or document.requested_division or document.declared):
        return
    asked = document.requested_division
    was = "none was requested" if asked is None else f"{asked} was requested"
    condition = f", {IF_ASSURED}" if document.division is Division.CLOSED else ""
    yield f"Division: {document.division or NONE}{condition} ({was})"
    if document.declared:
        yield "Settings that differ from the closed division:"
        yield from (f"    {each}" for each in document.declared)
    if document.division is Division.OPEN and asked is None:
        yield "Not in the closed division, by its rules:"
        yield from (f"    {each.rule}: {each.reason}" for each in document.closed_violations)
    yield SINGLE


def _rules(document: Report) -> Iterator[str]:
    rows = [(each.rule, each.value, each.limit) for each in document.rules]
    name, value, limit = (max(map(len, column)) for column in zip(*rows, strict=True))
    for each in document.rules:
        left = f"{each.rule:<{name}}  {each.value:<{value}}  {each.limit:<{limit}}"
        yield f"{left} ...... {'PASSED' if each.passed else 'FAILED'}"
        yield from (f"    {reason}" for reason in each.reasons)
    yield DOUBLE
    yield ""


def _end(document: Report) -> Iterator[str]:
    passed = sum(each.passed for each in document.rules)
    yield f"Finished {len(document.rules):6} rules with the following results:"
    yield f"         {passed:6} rules passed,"
    yield f"         {len(document.rules) - passed:6} rules failed."
    yield f"The score covers {duration(document.score.elapsed_seconds)}, including all waits."
    yield SINGLE
    yield ""
    yield last_line(document)
    yield DOUBLE


def last_line(document: Report) -> str:
    """Return the line for ``grep``; numbers have all their digits."""
    verdict = "VALID" if document.valid else "INVALID"
    rows = quantities_in(View.LAST_LINE).values()
    figures = {row.name: row.read(document) for row in rows}
    values = {
        **{name: NONE if value is None else repr(value) for name, value in figures.items()},
        "division": document.division or NONE,
        "run": " ".join(document.run_id.split()),
    }
    said = " ".join(f"{name}={value}" for name, value in values.items())
    return f"{LAST_LINE} {verdict if document.final else 'NOT FINAL'} {said}"
