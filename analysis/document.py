"""JSON output of analyses, for arbitrary names of logs and files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

_WORDS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_ENCODER = json.JSONEncoder(indent=1)


def as_json(values: Mapping[str, Any]) -> str:
    """Return a document as JSON-compatible values in ASCII.

    Pydantic's own writer rejects file names that are not valid text, and lone surrogates, which
    JSON may escape. Like Pydantic, this function writes NaN and infinities as strings.
    """
    return "".join(json_parts(values))


def json_parts(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text of a document in parts; an iterator among its values is written as a list.

    Each item is written immediately, so that a large document is never entirely in memory.
    """
    return _parts(values, "\n")


def _parts(value: object, line_end: str) -> Iterator[str]:
    """Yield the text of one value; ``line_end`` includes the indentation of its level."""
    if isinstance(value, Iterator):
        yield from _items((("", each) for each in value), "[]", line_end)
    elif isinstance(value, Mapping) and any(isinstance(one, Iterator) for one in value.values()):
        members = ((f"{json.dumps(key)}: ", each) for key, each in value.items())
        yield from _items(members, "{}", line_end)
    else:
        yield _ENCODER.encode(_finite(value)).replace("\n", line_end)


def _items(items: Iterator[tuple[str, object]], brackets: str, line_end: str) -> Iterator[str]:
    before = brackets[0]
    for name, value in items:
        yield f"{before}{line_end} {name}"
        yield from _parts(value, f"{line_end} ")
        before = ","
    yield f"{line_end}{brackets[1]}" if before == "," else brackets


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else _WORDS[str(value)]
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
