"""What an analysis says, as tables: a terminal and a page show the same ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from aiperf_hpc.formatting import NAMED, few

NONE = "–"
"""A cell of what is not there."""


class Table(NamedTuple):
    """Rows of figures under named columns; the first column names the row."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    """Cells as people read them."""
    title: str = ""
    notes: tuple[str, ...] = ()
    """What is said below it, a line each."""
    missing: tuple[str, ...] = ()
    """What could not be measured and why, a line each."""
    words: tuple[int, ...] = ()
    """The places of columns whose cells are words: they begin to the left, and may be broken. The
    first column is shortened where it is not among them."""
    brief: int | None = None
    """Rows that will do where there is little room; None: all of them."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """All that is said below it."""
        return (*self.notes, *(f"not measured: {line}" for line in self.missing))


def number(value: float) -> str:
    """Return a number with two decimals, more where it would be 0.0 otherwise: ``34.34``."""
    if value == 0 or abs(value) >= 0.095:
        return f"{value:,.2f}"
    return f"{value:.2g}"


def optional(say: Callable[[float], str], value: float | None) -> str:
    """Return a value as it is said, or a dash where there is none."""
    return NONE if value is None else say(value)


def reasons(missing: Mapping[str, str], most: int = NAMED) -> Iterator[str]:
    """Yield why figures are missing, the names that share a reason together: ``a, b: why``."""
    yield from (f"{few(names, most)}: {reason}" for reason, names in by_reason(missing).items())


def by_reason(said: Mapping[str, str]) -> dict[str, list[str]]:
    """Return what is said of names the other way round: of which names each is said."""
    names: dict[str, list[str]] = {}
    for name, reason in said.items():
        names.setdefault(reason, []).append(name)
    return names
