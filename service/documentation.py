"""OpenAPI document of the interface, and its interactive HTML page.

The document has the parts that FastAPI's generator omits. The page loads files of the package only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from pydantic import BaseModel

from aiperf_hpc.results.report.schema import attribute_docstrings
from aiperf_hpc.service.problem import MEDIA_TYPE, Problem
from aiperf_hpc.trial import Value

Document = dict[str, Any]
Schema = Mapping[str, Any]

PROBLEM = {"schema": {"$ref": f"#/components/schemas/{Problem.__name__}"}}
REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
"""Error statuses that any request may return before it is routed."""
OPEN = ("/healthz", "/docs")
FASTAPIS_OWN = ("HTTPValidationError", "ValidationError")
"""FastAPI's error schemas, which Problem replaces."""
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy of the page: no external resources."""


def describe(app: FastAPI) -> None:
    """Let the application generate the complete OpenAPI document on first request."""
    made_by_fastapi = app.openapi

    def openapi() -> Document:
        if app.openapi_schema is None:
            _complete(made_by_fastapi())
        return app.openapi_schema or {}

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(document: Document) -> None:
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas[Problem.__name__] = _plain(Problem, schemas)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            _put_refusals(operation, guarded=path not in OPEN)
            operation["security"] = [*([{}] if method == "get" else []), {"token": []}]
    for name in FASTAPIS_OWN:
        schemas.pop(name, None)
    _describe_fields(schemas)
    components["securitySchemes"] = {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "A token from --token-file. Read access on loopback requires none.",
        }
    }


def _plain(model: type[BaseModel], schemas: Document) -> Document:
    """Return the schema of a type, and add the schemas that it references."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    for name, other in schema.pop("$defs", {}).items():
        schemas.setdefault(name, other)
    return schema


def _put_refusals(operation: Document, *, guarded: bool) -> None:
    """Declare every error response as a Problem, and add those common to all requests."""
    responses = operation["responses"]
    for status in REFUSALS if guarded else ():
        responses.setdefault(str(status.value), {"description": status.description})
    for status, response in responses.items():
        if int(status) >= HTTPStatus.BAD_REQUEST:
            response["content"] = {MEDIA_TYPE: PROBLEM}


def _describe_fields(schemas: Document) -> None:
    """Add the docstrings of attributes as descriptions of fields."""
    for model in set(_subclasses(Value)):
        for name in (model.__name__, f"{model.__name__}-Input", f"{model.__name__}-Output"):
            properties = schemas.get(name, {}).get("properties", {})
            if properties.keys() == model.model_fields.keys():
                for field, said in attribute_docstrings(model).items():
                    properties[field].setdefault("description", said)


def _subclasses(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for each in model.__subclasses__():
        if each.__module__.startswith("aiperf_hpc"):
            yield each
            yield from _subclasses(each)


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
