"""Tables of figures, which terminals and pages show alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from aiperf_hpc.formatting import NAMED, few
from aiperf_hpc.grouping import grouped

NONE = "–"
"""Text of an empty cell."""


class Table(NamedTuple):
    """Rows of figures under named columns; the first column names the row."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    """Formatted cells."""
    title: str = ""
    notes: tuple[str, ...] = ()
    """Notes below the table, one line each."""
    missing: tuple[str, ...] = ()
    """Figures that could not be measured, with the reason, one line each."""
    words: tuple[int, ...] = ()
    """Indices of text columns, which are left-aligned and may be wrapped. The first column is
    shortened unless it is one of them."""
    brief: int | None = None
    """Number of rows to show in limited space; None for all."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """All lines below the table."""
        return (*self.notes, *(f"not measured: {line}" for line in self.missing))


def number(value: float) -> str:
    """Return a number with two decimals, or more if it would round to 0.0: ``34.34``."""
    if value == 0 or abs(value) >= 0.095:
        return f"{value:,.2f}"
    return f"{value:.2g}"


def optional(say: Callable[[float], str], value: float | None) -> str:
    """Return the formatted value, or a dash for None."""
    return NONE if value is None else say(value)


def reasons(missing: Mapping[str, str], most: int = NAMED) -> Iterator[str]:
    """Yield the reasons of missing figures, grouping names by reason: ``a, b: reason``."""
    names = grouped((reason, name) for name, reason in missing.items())
    yield from (f"{few(each, most)}: {reason}" for reason, each in names.items())
