"""A page that describes the interface, made of its OpenAPI: no script, nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""What the page may load: nothing."""

Schema = Mapping[str, Any]


class Field(NamedTuple):
    """A parameter, or a field of a type."""

    name: str
    type: Markup
    required: bool
    description: str


class Operation(NamedTuple):
    """What can be asked for."""

    id: str
    method: str
    path: str
    summary: str
    description: str
    parameters: list[Field]
    body: Markup
    answers: list[tuple[str, str, Markup]]
    """Statuses, what they mean, and what the body is."""


def page(openapi: Schema) -> str:
    """Return the page of an interface."""
    groups = [
        (tag["name"], tag["description"], list(_operations(openapi, tag["name"])))
        for tag in openapi["tags"]
    ]
    types = [
        (name, schema.get("description", ""), list(_fields(schema)), schema.get("enum", ()))
        for name, schema in sorted(openapi["components"]["schemas"].items())
    ]
    template = Environment(
        loader=PackageLoader("aiperf_hpc.service", "."), autoescape=True
    ).get_template("documentation.html")
    found = [(name, text, operations) for name, text, operations in groups if operations]
    return template.render(info=openapi["info"], groups=found, types=types)


def _operations(openapi: Schema, tag: str) -> Iterator[Operation]:
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            if tag in operation.get("tags", ()):
                first, _, rest = operation.get("description", "").partition("\n")
                yield Operation(
                    id=operation["operationId"],
                    method=method.upper(),
                    path=path,
                    summary=first,
                    description=rest.strip(),
                    parameters=[_parameter(each) for each in operation.get("parameters", ())],
                    body=_content(operation.get("requestBody", {})),
                    answers=[
                        (status, answer.get("description", ""), _content(answer))
                        for status, answer in sorted(operation["responses"].items())
                    ],
                )


def _parameter(parameter: Schema) -> Field:
    return Field(
        name=parameter["name"],
        type=_type(parameter["schema"]),
        required=parameter.get("required", False),
        description=parameter.get("description", ""),
    )


def _fields(schema: Schema) -> Iterator[Field]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        yield Field(name, _type(field), name in required, field.get("description", ""))


def _content(message: Schema) -> Markup:
    kinds = message.get("content", {})
    told = [_type(kind["schema"]) for kind in kinds.values() if kind.get("schema")]
    return told[0] if told else Markup("{}").format(", ".join(kinds))


def _type(schema: Schema) -> Markup:
    """Return what a value is in a few words, with a link to a type of its own."""
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
    said = [str(kind), *_limits(schema)]
    return Markup("{}").format(", ".join(said))


def _limits(schema: Schema) -> Iterator[str]:
    words = {
        "minimum": ">=",
        "exclusiveMinimum": ">",
        "maximum": "<=",
        "exclusiveMaximum": "<",
        "default": "default",
    }
    for name, word in words.items():
        if name in schema:
            value = schema[name]
            yield f"{word} {value if isinstance(value, (int, float)) else json.dumps(value)}"
    if "enum" in schema:
        yield "one of " + ", ".join(map(str, schema["enum"]))
