"""DAWNBench entries: a JSON description and, for a training run, a TSV file with its progress.

The TSV file has one row per evaluation, with the hours since the training's start: the clock of
these logs begins at 0, not at a date. A part of an entry with its own JSON file (``..._part2``) was
trained again, on another framework, and is a separate entry.

Source: https://github.com/stanford-futuredata/dawn-bench-entries, README.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from aiperf_hpc.analysis.readers.descriptions import finite_number, one_line, read_object
from aiperf_hpc.analysis.training_log import (
    Entry,
    Epoch,
    Evaluation,
    Inference,
    Interval,
    Quality,
    ReadResult,
    System,
    TrainingLog,
)
from aiperf_hpc.errors import AIPerfError, UsageError
from aiperf_hpc.untrusted.files import text_of

HOUR = 3600.0


class Task(NamedTuple):
    """Requirements of a DAWNBench benchmark."""

    name: str
    quality: str
    """Name of the quality column."""
    target: float
    """Target in the entries' README, in percent except for SQuAD."""


TASKS = (
    Task("CIFAR10", "top1Accuracy", 94.0),
    Task("ImageNet", "top5Accuracy", 93.0),
    Task("SQuAD", "f1Score", 0.73),
)
QUALITIES = ("top5Accuracy", "top1Accuracy", "f1Score")
_ALIASES = {
    **{name.lower(): name for name in ("epoch", "hours", *QUALITIES)},
    "top1": "top1Accuracy",
    "top5": "top5Accuracy",
    "f1": "f1Score",
}
_DESCRIBED = ("author", "framework", "hardware", "costPerHour", "version")

_MAKER = r"(?:(?i:nvidia) )?(?:Tesla )?"
_MODEL = (
    r"(?P<model>(?<![A-Za-z])[VPAHTMLK]\d{1,3}[a-zS]?(?![\w.])"
    r"|(?:GeForce )?[GR]TX ?\d{3,4}(?: ?Ti)?|TPU(?: ?v\d)?)"
)
_COUNT = r"(?<![\d.*x×])(?P<count>\d{1,6})(?!\d)"
_ACCELERATORS = (
    re.compile(rf"{_COUNT} ?[*x×]? ?{_MAKER}{_MODEL}"),
    re.compile(rf"{_MODEL} ?[*x×] ?(?P<count>\d{{1,6}})(?!\d)"),
    re.compile(rf"{_COUNT} GPUs? \({_MAKER}{_MODEL}\)"),
    re.compile(_MODEL),
)
"""Patterns of accelerators in a description, most specific first: ``4 * Nvidia Tesla V100``."""
_NODES = re.compile(r"(?<!\d)(\d{1,6}) (?:nodes|machines|instances)\b", re.IGNORECASE)
_PRICE = re.compile(r"\$? ?(?P<number>[0-9.eE+-]+) ?(?:\$|USD)?(?: ?/ ?(?:h|hr|hour))?")


def read_entry(json: Path, tsv: Path) -> ReadResult:
    """Read one training run from its description and its progress."""
    path = json
    try:
        described = read_object(json)
        path = tsv
        return ReadResult((_training(json, tsv, described, _table(text_of(tsv))),))
    except AIPerfError as error:
        return ReadResult.failed(path, error)


def read_inference(json: Path) -> ReadResult:
    """Read one inference measurement, which has only a description."""
    try:
        return ReadResult((_inference(json, read_object(json)),))
    except AIPerfError as error:
        return ReadResult.failed(json, error)


# --- The progress of a training run -------------------------------------------------------------


class _Table(NamedTuple):
    """The rows of a TSV file and their problems."""

    columns: tuple[str, ...]
    rows: dict[int, dict[str, str]]
    """Cells by column name, by line number in the file from 1."""
    problems: list[str]


def _table(text: str) -> _Table:
    """Parse a TSV file into named cells.

    Raises:
        UsageError: the file has no header, no rows, or lacks required columns.
    """
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise UsageError("empty")
    columns = _columns(lines[0][1])
    table = _Table(columns, {}, [])
    for number, line in lines[1:]:
        cells = _cells(line, len(columns))
        if len(cells) == len(columns):
            table.rows[number] = dict(zip(columns, cells, strict=True))
        else:
            fault = f"line {number}: {len(cells)} cells for {len(columns)} columns: skipped"
            table.problems.append(fault)
    if not table.rows:
        raise UsageError("no rows below the header")
    return table


def _columns(header: str) -> tuple[str, ...]:
    # Some headers are separated by spaces although the rows are separated by tabs.
    names = [_ALIASES.get(name.lower(), name) for name in header.split()]
    listed = ", ".join(names)[:120]
    if "hours" not in names:
        raise UsageError(f"no column 'hours' (columns: {listed})")
    if not set(QUALITIES) & set(names):
        raise UsageError(f"no column of {', '.join(QUALITIES)} (columns: {listed})")
    if len(set(names)) < len(names):
        raise UsageError(f"a column occurs twice (columns: {listed})")
    return tuple(names)


def _cells(line: str, count: int) -> list[str]:
    cells = [cell.strip() for cell in line.split("\t")] if "\t" in line else line.split()
    if len(cells) > count:  # Tabs for visual alignment only.
        cells = [cell for cell in cells if cell]
    return cells


_Rows = Mapping[int, Evaluation]
"""Evaluations by line number."""


def _training(json: Path, tsv: Path, described: Mapping[str, Any], table: _Table) -> Entry:
    problems: list[str] = []
    task = _task(json, table.columns, problems)
    quality = _quality(task, table.columns, problems)
    cells = [row[name] for row in table.rows.values() for name in row if name in QUALITIES]
    power = _unit(quality, cells, problems)
    problems += _few(table.problems)
    rows = _rows(table, quality.name, power, problems)
    system = _system(described, problems)
    return Entry(
        name=f"{task.name if task else json.parent.name}/{json.stem}",
        benchmark=task.name if task else "unknown",
        system=system,
        logs=(_log(tsv, described, quality, rows, system.accelerators),),
        problems=tuple(problems),
        **_described(json, described),
    )


def _described(json: Path, described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that entries of both kinds take from their description."""
    return {
        "format": "dawnbench",
        "round": one_line(described.get("version")),
        "organization": one_line(described.get("author")),
        "path": str(json),
    }


def _log(
    tsv: Path,
    described: Mapping[str, Any],
    quality: Quality,
    rows: _Rows,
    accelerators: int | None,
) -> TrainingLog:
    back = list(_backwards(rows))
    evaluations = tuple(rows.values())
    reached = quality.first_reached(evaluations)
    ended = (reached or evaluations[-1]).ended
    return TrainingLog(
        source=str(tsv),
        run=Interval(started=0.0, ended=None if back else ended),
        succeeded=None if quality.target is None else reached is not None,
        epochs=() if back else _epochs(evaluations),
        evaluations=evaluations,
        quality=quality,
        accelerators=accelerators,
        settings={key: value for key, value in described.items() if key not in _DESCRIBED},
        problems=tuple(_few(back)),
    )


def _task(json: Path, columns: Sequence[str], problems: list[str]) -> Task | None:
    """Return the benchmark named in the path or, failing that, identified by the columns."""
    for part in reversed(json.absolute().parts[:-1]):
        for task in TASKS:
            if part.lower().replace("-", "").replace("_", "") == task.name.lower():
                return task
    for task in reversed(TASKS):
        if task.quality in columns:
            problems.append(f"taken for {task.name}, by the column {task.quality}")
            return task
    problems.append("no benchmark is named by the path or the columns")
    return None


def _quality(task: Task | None, columns: Sequence[str], problems: list[str]) -> Quality:
    if task and task.quality in columns:
        return Quality(name=task.quality, higher_is_better=True, target=task.target)
    name = next(name for name in QUALITIES if name in columns)
    wanted = f"{task.name} is measured by {task.quality}: " if task else ""
    problems.append(f"{wanted}only {name} is recorded, for which there is no target")
    return Quality(name=name, higher_is_better=True, target=None)


def _unit(quality: Quality, cells: Sequence[str], problems: list[str]) -> int:
    """Return the power of ten by which to multiply, so that a benchmark has one unit.

    A file has fractions if none of its qualities is above 1: the first epoch of ImageNet may end
    below 1 %, but later ones do not.
    """
    known = [value for value in map(finite_number, cells) if value is not None]
    fractions = bool(known) and max(known) <= 1.0
    if quality.name == "f1Score":
        if not known or fractions:
            return 0
        problems.append("f1Score is in percent: divided by 100, because DAWNBench uses fractions")
        return -2
    if not fractions or max(known) == 0.0:
        return 0
    problems.append(
        f"{quality.name} is a fraction of 1: multiplied by 100, because DAWNBench uses percent"
    )
    return 2


def _rows(table: _Table, quality: str, power: int, problems: list[str]) -> _Rows:
    """Return the evaluations in the file's order, and their problems.

    Raises:
        UsageError: no row has a time.
    """
    rows, faults = dict[int, Evaluation](), list[str]()
    for line, cells in table.rows.items():
        hours, value = finite_number(cells["hours"]), _scaled(cells[quality], power)
        if hours is None:
            faults.append(f"line {line}: hours '{cells['hours'][:40]}' is not a number: skipped")
            continue
        if value is None:
            faults.append(f"line {line}: {quality} '{cells[quality][:40]}' is no number")
        epoch = finite_number(cells.get("epoch", ""))
        rows[line] = Evaluation(epoch, None, hours * HOUR, value)
    if not rows:
        raise UsageError("no row has its hours as a number")
    problems += [*_few(faults), *_skipped([row.epoch for row in rows.values()])]
    return rows


def _skipped(epochs: Sequence[float | None]) -> list[str]:
    numbers = [epoch for epoch in epochs if epoch is not None]
    gaps = [(a, b) for a, b in pairwise(numbers) if b - a > 1.5]
    if not gaps:
        return [] if numbers else ["no column 'epoch'"]
    first, then = gaps[0]
    more = f", and {len(gaps) - 1} times more" if len(gaps) > 1 else ""
    return [f"epochs are skipped: {then:g} follows {first:g}{more}"]


def _backwards(rows: _Rows) -> Iterator[str]:
    before = 0.0
    for line, (_, _, ended, _) in rows.items():
        if ended < before:
            yield (
                f"line {line}: time goes backwards, {ended / HOUR:g} h after "
                f"{before / HOUR:g} h; hours count from the start of the training"
            )
        before = ended


def _epochs(rows: Sequence[Evaluation]) -> tuple[Epoch, ...]:
    """Return the epochs, or none if rows skip some and are further apart than one epoch."""
    numbers = [row.epoch for row in rows if row.epoch is not None]
    if len(numbers) < len(rows) or any(not 0.5 < b - a < 1.5 for a, b in pairwise(numbers)):
        return ()
    ends = [row.ended for row in rows]
    return tuple(map(Epoch, [0.0, *ends[:-1]], ends, numbers))


# --- Common to both kinds of entries ------------------------------------------------------------


def _system(described: Mapping[str, Any], problems: list[str]) -> System:
    hardware = one_line(described.get("hardware")) or "not described"
    count, model = _accelerators(hardware)
    cost = _cost(described, "costPerHour", problems)
    stated = _NODES.search(hardware)
    nodes = int(stated[1]) if stated else None
    return System(
        name=hardware,
        nodes=nodes,
        # Whether a count next to the number of nodes is per node or in total is unspecified.
        accelerators=count if nodes in (None, 1) else None,
        accelerator=model,
        framework=one_line(described.get("framework")),
        cost_per_hour=cost,
    )


def _accelerators(hardware: str) -> tuple[int | None, str | None]:
    """Return the number of accelerators in a description, and their model."""
    for pattern in _ACCELERATORS:
        found = pattern.search(hardware)
        if found:
            count = found.groupdict().get("count")
            return int(count) if count else None, found["model"]
    return None, None


def _cost(described: Mapping[str, Any], key: str, problems: list[str]) -> float | None:
    stated = described.get(key)
    if stated is None or stated == "":
        return None
    found = _PRICE.fullmatch(stated.strip()) if isinstance(stated, str) else None
    cost = finite_number(found["number"] if found else stated)
    if cost is None or cost <= 0.0:
        problems.append(f"{key} is {str(stated)[:40]!r}, which is not a price: no cost")
        return None
    if found:
        problems.append(f"{key} is text: read as {cost:g} USD")
    return cost


def _inference(json: Path, described: Mapping[str, Any]) -> Entry:
    """Return an inference entry. Raises UsageError if it has neither a latency nor a cost."""
    problems: list[str] = []
    stated = finite_number(described.get("latency"))
    latency = stated / 1000.0 if stated is not None and stated > 0.0 else None
    cost = _cost(described, "cost", problems)
    if latency is None and cost is None:
        raise UsageError("neither 'latency' nor 'cost' is a number above 0: not an inference entry")
    columns = [name for name in QUALITIES if name in described]
    task = _task(json, columns, problems)
    quality, value = None, None
    if columns:
        quality = _quality(task, columns, problems)
        text = str(described[quality.name])
        value = _scaled(text, _unit(quality, [text], problems))
        if value is None:
            problems.append(f"{quality.name} is {text[:40]!r}, which is not a number")
    else:
        problems.append(f"none of {', '.join(QUALITIES)} is stated")
    return Entry(
        name=f"{task.name if task else json.parent.name}/inference/{json.stem}",
        benchmark=f"{task.name if task else 'unknown'} inference",
        system=_system(described, problems),
        logs=(),
        inference=Inference(latency=latency, cost=cost, quality=quality, value=value),
        problems=tuple(problems),
        **_described(json, described),
    )


def _scaled(cell: str, power: int) -> float | None:
    """Return a cell's number times a power of ten, exactly: 0.57 × 100 is 57."""
    try:
        return finite_number(float(Decimal(cell).scaleb(power)))
    except (ArithmeticError, ValueError):
        return None


def _few(problems: Sequence[str]) -> list[str]:
    """Return the first three problems of one kind, and the number of others."""
    more = len(problems) - 3
    return [*problems[:3], *([f"{more} more lines are like these"] if more > 0 else [])]
