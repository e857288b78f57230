"""A table of an analysis, as it stands on a page."""

from __future__ import annotations

from typing import NamedTuple


class Table(NamedTuple):
    """Rows of figures under named columns; the first column names the row."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Cells as people read them; empty where there is nothing to say."""
    title: str = ""
    notes: tuple[str, ...] = ()
    """What is said below it, a line each."""
