"""JSON Schema as Markdown: the text of a type, and a table of its fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]


def type_text(schema: Schema) -> str:
    """Return the text of a type; a named type is a link to its heading."""
    if "$ref" in schema:
        return f"[{type_name(schema)}](#{type_name(schema).lower()})"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(map(type_text, schema[several]))
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    return _PLAIN[schema["type"]](schema) if "type" in schema else "anything"


def type_table(title: str, schema: Schema) -> Iterator[str]:
    """Yield a heading of the third level and a table of a type's fields."""
    yield f"\n### {title}\n\n{one_line(schema.get('description', ''))}\n"
    if "properties" not in schema:
        yield f"{type_text(schema)}\n"
        return
    yield "| field | value | description |\n|---|---|---|"
    for key, field in schema["properties"].items():
        yield f"| `{key}` | {type_text(field)} | {one_line(field.get('description', ''))} |"
    yield ""


def type_name(schema: Schema) -> str:
    """Return the name of the type that a schema refers to."""
    return str(schema["$ref"]).rpartition("/")[2]


def references(schema: object) -> Iterator[str]:
    """Yield the name of each type that a schema refers to, as often as it does."""
    if isinstance(schema, Mapping):
        if "$ref" in schema:
            yield type_name(schema)
        schema = list(schema.values())
    for each in schema if isinstance(schema, list) else ():
        yield from references(each)


def one_line(text: str) -> str:
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
        kinds = dict.fromkeys(map(type_text, schema["prefixItems"]))
        return f"{len(schema['prefixItems'])} of: {', '.join(kinds)}"
    return f"list of: {type_text(schema.get('items', {}))}"


def _object(schema: Schema) -> str:
    values = schema.get("additionalProperties")
    return f"object of: {type_text(values)}" if isinstance(values, Mapping) else "object"


_PLAIN: dict[str, Callable[[Schema], str]] = {
    "array": _list,
    "boolean": lambda _: "`true`, `false`",
    "integer": _number,
    "null": lambda _: "none",
    "number": _number,
    "object": _object,
    "string": _text,
}
