"""OpenAPI document of the interface, with the parts that FastAPI's generator omits."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from aiperf_hpc.results.report.schema import attribute_docstrings
from aiperf_hpc.service.problem import MEDIA_TYPE, Problem
from aiperf_hpc.trial import Value

Document = dict[str, Any]

PROBLEM = {"schema": {"$ref": f"#/components/schemas/{Problem.__name__}"}}
REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
"""Error statuses that any request may return before it is routed."""
OPEN = ("/healthz", "/docs")
FASTAPIS_OWN = ("HTTPValidationError", "ValidationError")
"""FastAPI's error schemas, which Problem replaces."""


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
