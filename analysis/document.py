"""What is analysed as JSON, whatever names logs and files have."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

_WORDS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_ENCODER = json.JSONEncoder(indent=1)


def as_json(values: Mapping[str, Any]) -> str:
    """Return a document of plain values in ASCII.

    Pydantic's own writer refuses names of files that are no text, and halves of characters, which
    JSON may escape. As it does, this writes NaN and infinities as text, which JSON can hold.
    """
    return "".join(json_parts(values))


def json_parts(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text of a document, part by part: an iterator among its values is a list.

    What that gives is written as soon as it is given, so that a large document is never whole.
    """
    return _parts(values, "\n")


def _parts(value: object, line_end: str) -> Iterator[str]:
    """Yield the text of one value; ``line_end`` has the spaces of the level that it is on."""
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
