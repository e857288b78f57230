"""MkDocs hook: the reference of the service, made of its own OpenAPI description."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

from mkdocs.structure.pages import Page

from aiperf_hpc.service.app import create_app
from aiperf_hpc.service.runs import FolderOfRuns
from schema_words import Schema, in_words, type_table, unwrapped

PAGE, MARK = "reference/rest.md", "<!-- every route -->"


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Return the reference's page with all routes in the place of its mark."""
    if page.file.src_uri != PAGE:
        return markdown
    before, after = markdown.split(MARK)
    with tempfile.TemporaryDirectory() as folder:
        described = create_app(FolderOfRuns(Path(folder))).openapi()
    return "\n".join([before, *_reference(described), after])


def _reference(described: Schema) -> Iterator[str]:
    for tag in described["tags"]:
        routes = list(_routes(described, tag["name"]))
        if routes:
            yield f"\n## {tag['name'].capitalize()}\n\n{tag['description']}\n"
            yield from routes
    yield "\n## Answers\n"
    for name, schema in sorted(described["components"]["schemas"].items()):
        yield from type_table(name, schema)


def _routes(described: Schema, tag: str) -> Iterator[str]:
    for path, methods in described["paths"].items():
        for method, route in methods.items():
            if tag in route.get("tags", ()):
                yield f"\n### {method.upper()} {path}\n"
                yield f"{unwrapped(route.get('description', ''))}\n"
                yield from _parameters(route)
                yield from _answers(route)


def _parameters(route: Schema) -> Iterator[str]:
    parameters = route.get("parameters", ())
    if parameters:
        yield "| parameter | in | value | default | what it is |\n|---|---|---|---|---|"
    for each in parameters:
        schema = each["schema"]
        default = "to be given" if each["required"] else _default(schema)
        said = unwrapped(each.get("description", ""))
        yield f"| `{each['name']}` | {each['in']} | {in_words(schema)} | {default} | {said} |"
    yield ""


def _default(schema: Schema) -> str:
    value = schema.get("default")
    return "none" if value is None else f"`{json.dumps(value).strip(chr(34))}`"


def _answers(route: Schema) -> Iterator[str]:
    if body := route.get("requestBody"):
        yield f"Body: {_content(body)}.\n"
    statuses: dict[str, list[str]] = {}
    for status, answer in route["responses"].items():
        said = _content(answer) or unwrapped(answer["description"])
        statuses.setdefault(said, []).append(f"{status} {HTTPStatus(int(status)).phrase}")
    yield "| status | answer |\n|---|---|"
    for said, some in statuses.items():
        yield f"| {', '.join(some)} | {said} |"
    yield ""


def _content(answer: Schema) -> str:
    """Return the type of a body, or which media type it has."""
    content = answer.get("content", {})
    types = [in_words(each["schema"]) for each in content.values() if each.get("schema")]
    return types[0] if types else ", ".join(f"`{media}`" for media in content)
