"""Layout of tables and paragraphs within the width of the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from aiperf_hpc.results.table import Table
from aiperf_hpc.streams import cut, width, without_controls

WIDTH = 100
"""Default width in columns without a terminal."""
LEAST_WIDTH = 40
"""Minimum width in columns."""
GAP = "  "
NAME, LEAST_NAME = 0.4, 0.25
"""Minimum fraction of the width for names, and the reduced fraction that is acceptable if all other
columns then fit."""
LEAST_WORDS = 20
"""Minimum width of text columns."""


def tables_as_lines(tables: Iterable[Table], columns: int = WIDTH) -> Iterator[str]:
    """Yield the lines of tables, each with its title above and its remarks below."""
    room = max(columns, LEAST_WIDTH)
    for table in tables:
        indent = 4 if table.title else 2
        yield from wrapped(table.title, room)
        yield from (" " * indent + line for line in _rows(table, room - indent))
        for remark in _remarks(table):
            yield from wrapped(remark, room, indent)


def wrapped(text: str, columns: int = WIDTH, indent: int = 2) -> Iterator[str]:
    """Yield the lines of a wrapped paragraph with a hanging indent."""
    yield from textwrap.wrap(
        text,
        max(columns, LEAST_WIDTH),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_on_hyphens=False,
    )


def shortened(name: str, columns: int) -> str:
    """Return a name shortened in the middle, which preserves its benchmark and scenario."""
    if width(name) <= columns:
        return name
    tail = columns // 2
    return f"{cut(name, columns - tail - 1)}…{cut(name[::-1], tail)[::-1]}"


def _remarks(table: Table) -> Iterator[str]:
    more = 0 if table.brief is None else len(table.rows) - table.brief
    if more > 0:
        yield f"and {more:,} more, all of them with --report or --json"
    yield from table.remarks


class _Column(NamedTuple):
    """One column: the lines of its head and of each cell."""

    width: int
    cells: tuple[tuple[str, ...], ...]
    left: bool

    def line(self, row: int, line: int) -> str:
        """Return a line of a cell, padded to the width of the column."""
        cell = self.cells[row]
        text = cell[line] if 0 <= line < len(cell) else ""
        space = " " * (self.width - width(text))
        return text + space if self.left else space + text


def _rows(table: Table, room: int) -> Iterator[str]:
    """Yield head and rows; columns that do not fit beside the others follow below them."""
    if not table.rows:
        return
    rows = [table.columns, *table.rows[: table.brief]]
    texts = [[_one_line(row[place]) for row in rows] for place in range(len(table.columns))]
    name, *others = _columns(texts, {0, *table.words}, room, words=0 in table.words)
    for block in _blocks(name, others, room):
        for row in range(len(rows)):
            yield from _lines(block, row)


def _one_line(text: str) -> str:
    return " ".join(without_controls(text).split())


def _columns(
    texts: Sequence[Sequence[str]], left: set[int], room: int, *, words: bool
) -> list[_Column]:
    """Return the columns; if too wide, text columns and then names are narrowed.

    Args:
        texts: cells of each column, after its head.
        left: indices of the left-aligned columns.
        room: available width in terminal columns.
        words: whether names are text, which is wrapped instead of shortened.
    """
    widths = [max(map(width, texts[0])), *map(_natural, texts[1:])]
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - room
    for place in sorted(left - {0}, key=lambda place: -widths[place]):
        less = max(0, min(excess, widths[place] - max(LEAST_WORDS, _longest_word(texts[place][0]))))
        widths[place] -= less
        excess -= less
    if excess > 0:
        widths[0] = _name_width(texts[0], widths[0] - excess, room, words=words)
    names = tuple(_name_lines(text, widths[0], words=words) for text in texts[0])
    rest = [_column(cells, size, place in left) for place, (cells, size)
            in enumerate(zip(texts[1:], widths[1:], strict=True), 1)]  # fmt: skip
    return [_Column(max(width(line) for cell in names for line in cell), names, True), *rest]


def _name_lines(name: str, columns: int, *, words: bool) -> tuple[str, ...]:
    if words:
        return tuple(textwrap.wrap(name, columns, break_on_hyphens=False)) or ("",)
    return (shortened(name, columns),)


def _natural(cells: Sequence[str]) -> int:
    """Return the width of a column whose head may be wrapped into two or three lines."""
    return max(1, _longest_word(cells[0]), -(-width(cells[0]) // 2), *map(width, cells[1:]))


def _longest_word(text: str) -> int:
    return max(map(width, text.split()), default=0)


def _name_width(cells: Sequence[str], fitting: int, room: int, *, words: bool) -> int:
    """Return the width of names: the width left by the other columns if legible, or more."""
    if words:
        return min(max(map(width, cells)), max(fitting, LEAST_WORDS, *map(_longest_word, cells)))
    if fitting >= _least_name(cells, int(LEAST_NAME * room)):
        return fitting
    return _least_name(cells, int(NAME * room))


def _least_name(cells: Sequence[str], least: int) -> int:
    """Return the minimum width at which shortened names are still different."""
    head, *names = cells
    wide = max(map(width, cells))
    least = max(least, width(head))
    different = len(set(names))
    return next(
        size for size in range(min(least, wide), wide + 1)
        if len({shortened(name, size) for name in names}) == different
    )  # fmt: skip


def _column(texts: Sequence[str], size: int, left: bool) -> _Column:
    cells = tuple(tuple(textwrap.wrap(text, size, break_on_hyphens=False)) for text in texts)
    return _Column(size, cells, left)


def _blocks(name: _Column, others: Sequence[_Column], room: int) -> Iterator[tuple[_Column, ...]]:
    """Yield groups of columns that fit side by side, each after the names."""
    block = [name]
    used = name.width
    for column in others:
        if len(block) > 1 and used + len(GAP) + column.width > room:
            yield tuple(block)
            block, used = [name], name.width
        block.append(column)
        used += len(GAP) + column.width
    yield tuple(block)


def _lines(block: Sequence[_Column], row: int) -> Iterator[str]:
    """Yield the lines of a row; heads are aligned at the bottom."""
    height = max(len(column.cells[row]) for column in block)
    for line in range(height):
        text = GAP.join(
            column.line(row, line - (height - len(column.cells[row]) if row == 0 else 0))
            for column in block
        ).rstrip()
        if text:
            yield text
