"""JSON Schema of ``report.json``, generated from the typed model and its docstrings.

It is generated for every report and for the documentation site, so no stored copy can become
outdated. ``python -m aiperf_hpc.results.report.schema`` prints it.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from aiperf_hpc.results.report.document import Report

DIALECT = "https://json-schema.org/draft/2020-12/schema"
IDENTIFIER = "urn:aiperf-hpc:report:{version}"


@cache
def schema_text() -> str:
    """Return the schema of this version's reports as text."""
    return json.dumps(report_schema(), indent=1, ensure_ascii=False) + "\n"


def report_schema() -> dict[str, Any]:
    """Return the schema of this version's documents; every key has a description if its field has a
    docstring."""
    schema = Report.model_json_schema(mode="serialization", schema_generator=_Described)
    version = Report.model_fields["schema_version"].default
    return {
        "$schema": DIALECT,
        "$id": IDENTIFIER.format(version=version),
        **schema,
        "title": "report.json of a run of AIPerf-HPC",
    }


class _Described(GenerateJsonSchema):
    """Generator of schemas whose properties have the attributes' docstrings as descriptions.

    Titles are omitted, because they would repeat the names.
    """

    def field_title_should_be_set(self, schema: object) -> bool:
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        properties = made.get("properties", {})
        for name, said in attribute_docstrings(schema["cls"]).items():
            if name in properties:
                properties[name].setdefault("description", said)
        return made


def attribute_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of the fields of a model and its base classes."""
    own = [each for each in reversed(model.__mro__) if each.__module__.startswith("aiperf_hpc")]
    found: dict[str, str] = {}
    for each in own:
        found |= _docstrings(each.__module__).get(each.__name__, {})
    return found


@cache
def _docstrings(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of all classes' attributes in a module, by class and name."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    classes = [each for each in tree.body if isinstance(each, ast.ClassDef)]
    return {each.name: dict(_of_class(each)) for each in classes}


def _of_class(tree: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(tree.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(said))),
            ):
                yield name, " ".join(said.split())


if __name__ == "__main__":
    sys.stdout.write(schema_text())
