"""JSON Schema in words: what a value may be, and its description in one line of Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]


def in_words(schema: Schema) -> str:
    """Return what a value may be; a type of its own is linked to its heading."""
    if "$ref" in schema:
        return f"[{type_name(schema)}](#{type_name(schema).lower()})"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(map(in_words, schema[several]))
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    return _PLAIN[schema["type"]](schema) if "type" in schema else "anything"


def type_table(title: str, schema: Schema) -> Iterator[str]:
    """Yield a type under a heading of the third level: a row for each of its fields."""
    yield f"\n### {title}\n\n{unwrapped(schema.get('description', ''))}\n"
    if "properties" not in schema:
        yield f"{in_words(schema)}\n"
        return
    yield "| field | value | what it is |\n|---|---|---|"
    for key, field in schema["properties"].items():
        yield f"| `{key}` | {in_words(field)} | {unwrapped(field.get('description', ''))} |"
    yield ""


def type_name(schema: Schema) -> str:
    """Return the name of the type that a reference is to."""
    return str(schema["$ref"]).rpartition("/")[2]


def unwrapped(text: str) -> str:
    """Return a description in one line."""
    return " ".join(text.replace("``", "`").replace("|", "\\|").split())


def _number(schema: Schema) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = [f"{sign} {_round(schema[key]):,}" for key, sign in signs.items() if key in schema]
    return " ".join([schema["type"], ", ".join(limits)]).strip()


def _round(limit: float) -> float:
    return int(limit) if limit == int(limit) else limit


def _text(schema: Schema) -> str:
    return "path" if schema.get("format") == "path" else "text"


def _list(schema: Schema) -> str:
    if "prefixItems" in schema:
        kinds = dict.fromkeys(map(in_words, schema["prefixItems"]))
        return f"{len(schema['prefixItems'])} of: {', '.join(kinds)}"
    return f"list of: {in_words(schema.get('items', {}))}"


def _object(schema: Schema) -> str:
    values = schema.get("additionalProperties")
    return f"object of: {in_words(values)}" if isinstance(values, Mapping) else "object"


_PLAIN: dict[str, Callable[[Schema], str]] = {
    "array": _list,
    "boolean": lambda _: "`true`, `false`",
    "integer": _number,
    "null": lambda _: "none",
    "number": _number,
    "object": _object,
    "string": _text,
}
