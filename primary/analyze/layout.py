"""Numbers and paragraphs of an analysis on a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping

from aiperf_hpc.primary.formatting import few

WIDTH = 100
"""Columns of every line, names of entries apart."""


def number(value: float) -> str:
    """Return a number with two decimals, more where it would be 0.0 otherwise: ``34.34``."""
    if value == 0 or abs(value) >= 0.095:
        return f"{value:,.2f}"
    return f"{value:.2g}"


def wrapped(text: str, indent: int = 2) -> Iterator[str]:
    """Yield a paragraph within the width, its lines after the first set in further."""
    yield from textwrap.wrap(
        text,
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_on_hyphens=False,
    )


def fitted(line: str) -> Iterator[str]:
    """Yield a line, as a paragraph where it is too long and no row of a table."""
    text = line.strip()
    if len(line) <= WIDTH or "  " in text:
        yield line
    else:
        yield from wrapped(text, len(line) - len(line.lstrip()))


def reasons(missing: Mapping[str, str]) -> Iterator[str]:
    """Yield why figures are missing, the names that share a reason together: ``a, b: why``."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in missing.items():
        by_reason.setdefault(reason, []).append(name)
    yield from (f"{few(names)}: {reason}" for reason, names in by_reason.items())


def shortened(name: str, width: int) -> str:
    """Return a name cut in its middle, so that its benchmark and scenario stay."""
    if len(name) <= width:
        return name
    tail = width // 2
    return f"{name[: width - tail - 1]}…{name[-tail:]}"
