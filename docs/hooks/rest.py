"""The reference of the service, from its OpenAPI document: a page for each group of routes."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from pathlib import Path

from aiperf_hpc.service.app import create_app
from aiperf_hpc.service.run_queue import RunQueue
from aiperf_hpc.service.runs import FolderOfRuns
from schema_tables import Schema, one_line, references, type_table, type_text

SHARED = "types"
"""The page of the types that routes of several groups use."""


@dataclass(frozen=True)
class Group:
    """Routes that share a page."""

    name: str
    title: str
    routes: str
    """The pattern of a method and a path; a route belongs to the first group that it matches."""


GROUPS = (
    Group("changes", "Changes", r"POST |GET /api/v1/queue"),
    Group("trials", "Trials and networks", r".*/runs/{run}/(trials|in-flight|candidates|tree)"),
    Group("machines", "Replicas and machines", r".*/runs/{run}/(replicas|machine|telemetry)"),
    Group("run", "A run", r".*/runs/{run}/"),
    Group("runs", "Runs", r".*/api/v1/"),
    Group("service", "The service", r""),
)


@cache
def document() -> Schema:
    """Return the OpenAPI document of a service with every route."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return create_app(FolderOfRuns(folder), queue=RunQueue(folder)).openapi()


def reference() -> Iterator[str]:
    """Yield a table of all routes, each with a link to its description."""
    yield "| route | page |\n|---|---|"
    for group in reversed(GROUPS):
        for route in _routes(group):
            yield f"| `{route}` | [{group.title}](rest/{group.name}.md#{_anchor(route)}) |"


def pages() -> Iterator[tuple[str, str]]:
    """Yield name and text of the page of each group and of the shared types."""
    homes = _homes()
    for group in GROUPS:
        text = "\n".join(_page(group, homes))
        yield group.name, _linked(text, group.name, homes)
    text = "\n".join(["# Shared types", *_types(SHARED, homes)])
    yield SHARED, _linked(text, SHARED, homes)


def _routes(group: Group) -> dict[str, Schema]:
    """Return the operations of a group by method and path."""
    routes = {
        f"{method.upper()} {path}": operation
        for path, methods in document()["paths"].items()
        for method, operation in methods.items()
    }
    return {route: each for route, each in routes.items() if _group_of(route) is group}


def _group_of(route: str) -> Group:
    return next(group for group in GROUPS if re.match(group.routes, route))


def _anchor(route: str) -> str:
    return re.sub(r"\W+", "-", re.sub(r"[/{}.]", "", route)).lower()


def _homes() -> dict[str, str]:
    """Return the page of each type: that of the only group that uses it, or the shared one."""
    schemas = document()["components"]["schemas"]
    homes: dict[str, str] = {}
    for group in GROUPS:
        waiting, seen = list(references(list(_routes(group).values()))), set[str]()
        while waiting:
            if (name := waiting.pop()) not in seen:
                seen.add(name)
                waiting += references(schemas[name])
        for name in seen:
            homes[name] = SHARED if name in homes else group.name
    return homes


def _linked(text: str, page: str, homes: dict[str, str]) -> str:
    """Return a page's text whose links to types lead to the pages of these."""
    files = {name.lower(): "" if home == page else f"{home}.md" for name, home in homes.items()}
    return re.sub(r"\]\(#([a-z]+)\)", lambda link: f"]({files[link[1]]}#{link[1]})", text)


def _page(group: Group, homes: dict[str, str]) -> Iterator[str]:
    yield f"# REST: {group.title}"
    for route, operation in _routes(group).items():
        yield f"\n## {route}\n"
        yield f"{one_line(operation.get('description', ''))}\n"
        yield from _parameters(operation)
        yield from _responses(operation)
    yield "\n## Types\n"
    yield from _types(group.name, homes)


def _types(page: str, homes: dict[str, str]) -> Iterator[str]:
    for name, schema in sorted(document()["components"]["schemas"].items()):
        if homes.get(name) == page:
            yield from type_table(name, schema)


def _parameters(operation: Schema) -> Iterator[str]:
    parameters = operation.get("parameters", ())
    if parameters:
        yield "| parameter | in | value | default | description |\n|---|---|---|---|---|"
    for each in parameters:
        default = "required" if each["required"] else _default(each["schema"])
        row = (f"`{each['name']}`", each["in"], type_text(each["schema"]), default)
        yield f"| {' | '.join(row)} | {one_line(each.get('description', ''))} |"
    yield ""


def _default(schema: Schema) -> str:
    value = schema.get("default")
    return "none" if value is None else f"`{json.dumps(value).strip(chr(34))}`"


def _responses(operation: Schema) -> Iterator[str]:
    if body := operation.get("requestBody"):
        yield f"Body: {_content(body)}.\n"
    statuses: dict[str, list[str]] = {}
    for status, response in operation["responses"].items():
        content = _content(response) or one_line(response["description"])
        statuses.setdefault(content, []).append(f"{status} {HTTPStatus(int(status)).phrase}")
    yield "| status | response |\n|---|---|"
    for content, some in statuses.items():
        yield f"| {', '.join(some)} | {content} |"
    yield ""


def _content(message: Schema) -> str:
    """Return the type of a body, or its media type."""
    content = message.get("content", {})
    types = [type_text(each["schema"]) for each in content.values() if each.get("schema")]
    return types[0] if types else ", ".join(f"`{media}`" for media in content)
