"""How files are changed at random: byte by byte, and by what is in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

Json = Any
Path = tuple[str | int, ...]
Draw = Callable[[st.SearchStrategy[Any]], Any]

NUMBERS: Sequence[Json] = (
    0, -1, 1, 2, 2**31, 2**63 - 1, 2**63, 10**30, 10**310, -(10**310), 0.5, -0.0, 1e-300, 5e-324,
    1e15, 1e30, 1e300, 1e308, float("inf"), float("-inf"), float("nan"), 253402300799.0,
)  # fmt: skip
TEXTS: Sequence[Json] = (
    "", " ", ".", "..", "../../../x", "/etc/passwd", "/dev/zero", "a\0b", "\ud800", "\u202e\x1b[2J",
    "x" * 300, "nan", "NaN", "Infinity", "1e999", "0x10", "9" * 5000, "r0", "r0-0", "primary", "\n",
    "%s{}", "é" * 100,
)  # fmt: skip
OTHERS: Sequence[Json] = (
    None, True, False, [], {}, [[]], [None], {"": None}, {"a": {"b": []}}, [0] * 300,
)  # fmt: skip
PIECES = (b"\0", b"\xff", b"\n", b"[", b"{", b'"', b"1", b"-", b"e9")
CHANGES = ("record", "record", "record", "bytes", "time", "gone", "swap", "twice")
VALUES = st.sampled_from([*NUMBERS, *TEXTS, *OTHERS])


def paths_in(document: Json, above: Path = ()) -> list[Path]:
    """Return where each value of a document lies, the document itself first."""
    parts: Sequence[tuple[str | int, Json]] = ()
    if isinstance(document, dict):
        parts = list(document.items())
    elif isinstance(document, list):
        parts = list(enumerate(document[:20]))
    return [above, *(path for key, part in parts for path in paths_in(part, (*above, key)))]


def value_at(document: Json, path: Path) -> Json:
    for key in path:
        document = document[key]
    return document


def changed(draw: Draw, document: Json) -> Json:
    """Return a document in which a value is another, is gone, or stands elsewhere too."""
    made = deepcopy(document)
    path = draw(st.sampled_from(paths_in(made)))
    if not path:
        return draw(VALUES)
    holder, key = value_at(made, path[:-1]), path[-1]
    match draw(st.sampled_from(["value", "value", "value", "near", "gone", "copy", "other key"])):
        case "value":
            holder[key] = draw(VALUES)
        case "near":
            holder[key] = near(draw, holder[key])
        case "gone":
            del holder[key]
        case "copy":
            holder[key] = deepcopy(value_at(made, draw(st.sampled_from(paths_in(document)))))
        case _:
            if isinstance(holder, dict):
                holder[draw(st.sampled_from(["x", "", "type", "v", *TEXTS[:8]]))] = holder.pop(key)
            else:
                holder.append(deepcopy(holder[key]))
    return made


def near(draw: Draw, value: Json) -> Json:
    """Return a value that is a little different."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float) and -1e300 < value < 1e300:
        return value + draw(st.sampled_from([-1, 1, 0.5, 1e-9, -1e-3, 60, 3600, -1e6, 1e9, 1e10]))
    if isinstance(value, str) and value:
        at = draw(st.integers(0, len(value) - 1))
        return value[:at] + draw(st.sampled_from("0a/\0 é")) + value[at + 1 :]
    return [value, value]


def as_json(document: Json) -> bytes:
    """Return a document as JSON, in which Python's numbers that are none have their names."""
    return json.dumps(document).encode()


def changed_bytes(draw: Draw, content: bytes) -> bytes:
    """Return bytes of which some are others, are gone, or stand twice."""
    at: int = draw(st.integers(0, max(0, len(content) - 1)))
    size: int = draw(st.sampled_from([1, 1, 1, 2, 10, 1000]))
    match draw(st.sampled_from(["other", "other", "other", "gone", "twice", "cut", "put in"])):
        case "other":
            return content[:at] + bytes([draw(st.integers(0, 255))]) + content[at + 1 :]
        case "gone":
            return content[:at] + content[at + size :]
        case "twice":
            return content[: at + size] + content[at:]
        case "cut":
            return content[:at]
        case _:
            piece: bytes = draw(st.sampled_from(PIECES))
            return content[:at] + piece * size + content[at:]


def changed_document(draw: Draw, content: bytes) -> bytes:
    """Return a file of JSON of which bytes or up to three values are changed."""
    if draw(st.booleans()):
        document = json.loads(content)
        for _ in range(draw(st.integers(1, 3))):
            document = changed(draw, document)
        return as_json(document)
    return changed_bytes(draw, content)


def changed_journal(draw: Draw, content: bytes) -> bytes:
    """Return a journal of which bytes, records or their order are changed."""
    lines = content.splitlines(keepends=True)
    at, other = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    match draw(st.sampled_from(CHANGES)):
        case "record":
            record = json.loads(lines[at])
            for _ in range(draw(st.integers(1, 3))):
                record = changed(draw, record)
            lines[at] = as_json(record) + b"\n"
        case "bytes":
            return changed_bytes(draw, content)
        case "time":
            record = json.loads(lines[at])
            record["utc"] += 10.0 ** draw(st.integers(-6, 11)) * draw(
                st.sampled_from([-9, -1, 1, 9])
            )
            lines[at] = as_json(record) + b"\n"
        case "gone":
            del lines[at]
        case "swap":
            lines[at], lines[other] = lines[other], lines[at]
        case _:
            lines.insert(other, lines[at])
    return b"".join(lines)
