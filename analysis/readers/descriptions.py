"""What submitters describe in JSON objects of their own making, in which anything may stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aiperf_hpc.errors import UsageError
from aiperf_hpc.untrusted.files import nested_too_deep, text_of

MOST_BYTES = 4 * 1024 * 1024
"""Of the longest description that is read."""


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object. Some have tabs within their strings, or bytes that are no text.

    Raises:
        UsageError: it cannot be read, or is no JSON object; the message is the reason, without the
            file's name.
    """
    try:
        described = json.loads(text_of(path, MOST_BYTES, errors="replace"), strict=False)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not JSON: {' '.join(str(error).split())}") from None
    if not isinstance(described, dict):
        raise UsageError(f"not a JSON object but a {type(described).__name__}")
    if nested_too_deep(described):
        raise UsageError("its JSON is nested too deep")
    return described


def one_line(value: object) -> str | None:
    """Return a text in one line, or None for what is none."""
    return " ".join(value.split()) or None if isinstance(value, str) else None


LARGEST = 1e30
"""No time, count, price or quality comes near; what is multiplied of a few such is still finite."""


def finite_number(value: object) -> float | None:
    """Return a number as such, also one written as text, and None for anything else."""
    if type(value) is not float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            return None
        try:
            value = float(value)
        except (ValueError, OverflowError):
            return None
    return value if -LARGEST < value < LARGEST else None


def whole_number(value: object) -> int | None:
    """Return a number of things, at least one; None for anything else."""
    number = finite_number(value)
    return None if number is None or number < 1 else int(number)
