"""Interactive HTML page of the interface, generated from its OpenAPI document, which loads files of
the package only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy of the page: no external resources."""

Schema = Mapping[str, Any]


def page(openapi: Schema) -> str:
    """Return the documentation page of an OpenAPI document."""
    environment = Environment(loader=PackageLoader("aiperf_hpc.service", "."), autoescape=True)
    environment.filters |= {"type": _type, "content": _content}
    groups = [(tag, list(_operations(openapi, tag["name"]))) for tag in openapi["tags"]]
    return environment.get_template("documentation.html").render(
        info=openapi["info"],
        groups=[(tag, operations) for tag, operations in groups if operations],
        types=sorted(openapi["components"]["schemas"].items()),
    )


def _operations(openapi: Schema, tag: str) -> Iterator[tuple[str, str, Schema]]:
    """Yield the method, path and description of each operation of a group."""
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            if tag in operation.get("tags", ()):
                yield method.upper(), path, operation


def _content(message: Schema) -> Markup:
    """Return the type of a request or response body."""
    kinds = message.get("content", {})
    types = [_type(kind["schema"]) for kind in kinds.values() if kind.get("schema")]
    return types[0] if types else Markup("{}").format(", ".join(kinds))


def _type(schema: Schema) -> Markup:
    """Return a short description of a value's type, with a link to its definition."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return Markup('<a href="#type-{0}">{0}</a>').format(name)
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return Markup(" or ").join(_type(each) for each in schema[several])
    kind = schema.get("type", "any")
    if kind == "array":
        inner = schema.get("items") or {"type": "any"}
        return Markup("array of {}").format(_type(inner))
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return Markup("object of {}").format(_type(schema["additionalProperties"]))
    return Markup("{}").format(", ".join([str(kind), *_limits(schema)]))


LIMITS = {
    "minimum": ">=",
    "exclusiveMinimum": ">",
    "maximum": "<=",
    "exclusiveMaximum": "<",
    "default": "default",
}
"""Relation signs of the limits of a value."""


def _limits(schema: Schema) -> Iterator[str]:
    for name, sign in LIMITS.items():
        if name in schema:
            value = schema[name]
            yield f"{sign} {value if isinstance(value, (int, float)) else json.dumps(value)}"
    if "enum" in schema:
        yield "one of " + ", ".join(map(str, schema["enum"]))
