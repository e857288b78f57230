"""Numbers of logs and descriptions, in which anything may stand where one belongs."""

from __future__ import annotations

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
