"""How deep JSON may be nested that anyone may have written."""

from __future__ import annotations

MOST_LEVELS = 100
"""What is deeper is not kept: it could not be written again."""


def nested_too_deep(value: object) -> bool:
    """Return whether lists and objects lie within each other on more levels than are kept."""
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [part for each in level for part in _parts(each)]
        if not level:
            return False
    return True


def _parts(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
