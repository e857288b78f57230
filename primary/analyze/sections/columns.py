"""Tables as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def aligned(rows: Sequence[Sequence[str]], indent: int = 4) -> Iterator[str]:
    """Yield rows in columns as wide as need be: all but the last column to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        yield " " * indent + "  ".join([*cells, row[-1]]).rstrip()
