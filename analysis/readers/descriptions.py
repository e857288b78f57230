"""Descriptions by submitters: JSON objects without a fixed schema, with arbitrary content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aiperf_hpc.errors import UsageError
from aiperf_hpc.untrusted.files import nested_too_deep, text_of

MOST_BYTES = 4 * 1024 * 1024
"""Maximum size of a description in bytes."""


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object. Some have tabs within strings, or bytes that are not valid text.

    Raises:
        UsageError: the file cannot be read or is not a JSON object; the message is the reason,
            without the file's name.
    """
    try:
        described = json.loads(text_of(path, MOST_BYTES, errors="replace"), strict=False)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not JSON: {' '.join(str(error).split())}") from None
    if not isinstance(described, dict):
        raise UsageError(f"not a JSON object but a {type(described).__name__}")
    if nested_too_deep(described):
        raise UsageError("its JSON is nested too deeply")
    return described


def one_line(value: object) -> str | None:
    """Return a text in one line, or None if the value is not a text."""
    return " ".join(value.split()) or None if isinstance(value, str) else None


LARGEST = 1e30
"""Upper limit of numbers, far above any time, count, price or quality; products stay finite."""


def finite_number(value: object) -> float | None:
    """Return a number, also if written as text, or None for anything else."""
    if type(value) is not float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            return None
        try:
            value = float(value)
        except (ValueError, OverflowError):
            return None
    return value if -LARGEST < value < LARGEST else None


def whole_number(value: object) -> int | None:
    """Return a count of at least one, or None for anything else."""
    number = finite_number(value)
    return None if number is None or number < 1 else int(number)
