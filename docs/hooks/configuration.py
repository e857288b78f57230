"""The reference of the configuration, from the descriptions of its fields: a page for each group
of sections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import yaml

from aiperf_hpc.config import RunConfig, preset_names, preset_text
from schema_tables import Schema, one_line, references, type_name, type_text

CONFIGURATION = "configuration"
"""The folder of the pages."""
HEAD = ("| key | value | default | description |", "|---|---|---|---|")


@dataclass(frozen=True)
class Group:
    """Sections that share a page."""

    name: str
    title: str
    sections: tuple[str, ...] = ()
    """Keys of the sections; a group without any has all that no other group has."""


GROUPS = (
    Group("data", "Dataset and model", ("dataset", "model")),
    Group("training", "Training", ("training",)),
    Group("search", "Search and hyperparameters", ("rounds", "hpo", "search")),
    Group("machine", "Engine, replicas and SLURM", ("engine", "replica", "slurm")),
    Group("records", "Score, records and measurements"),
)
PRESETS = "presets"
"""The page of the presets."""


@cache
def document() -> Schema:
    """Return the JSON Schema of a configuration."""
    return RunConfig.model_json_schema()


def reference() -> Iterator[str]:
    """Yield a table of the top level, with a link to the page of each section."""
    yield from _table(document(), "", "## Top level")
    yield f"The [presets]({CONFIGURATION}/{PRESETS}.md) have a page of their own."


def pages() -> Iterator[tuple[str, str]]:
    """Yield name and text of the page of each group and of the presets."""
    for group in GROUPS:
        yield group.name, "\n".join(_page(group))
    texts = ((name, preset_text(name).strip()) for name in preset_names())
    presets = (f"\n## {name}\n\n```yaml\n{text}\n```" for name, text in texts)
    yield PRESETS, "\n".join(["# Configuration: Presets", *presets])


def _page(group: Group) -> Iterator[str]:
    """Yield the sections of a group, then the types of their values."""
    yield f"# Configuration: {group.title}"
    used = set[str]()
    for key, field in document()["properties"].items():
        if (name := _section_of(field)) is not None and _group_of(key) is group:
            section = document()["$defs"][name]
            used |= {name for name in references(_whole(section)) if name in _shared()}
            yield from _section(section, f"{key}.")
    if used:
        yield "\n## Types of values"
    for name in sorted(used):
        yield from _table(document()["$defs"][name], "", f"### {name}")


def _group_of(key: str) -> Group:
    return next((group for group in GROUPS if key in group.sections), GROUPS[-1])


def _whole(schema: object) -> object:
    """Return a schema with the sections in it in place of references to them."""
    if isinstance(schema, Mapping):
        if (name := _section_of(schema)) is not None:
            return _whole(document()["$defs"][name])
        return {key: _whole(each) for key, each in schema.items()}
    return [_whole(each) for each in schema] if isinstance(schema, list) else schema


@cache
def _shared() -> frozenset[str]:
    """Return the types that have tables of their own: of lists, or used more than once."""
    uses = Counter(references(document()))
    return frozenset({name for name, times in uses.items() if times > 1} | {*_listed(document())})


def _section(section: Schema, path: str) -> Iterator[str]:
    """Yield a section's table, then those of the sections in it."""
    yield from _table(section, path, f"## {path[:-1]}")
    for key, field in section["properties"].items():
        if (name := _section_of(field)) is not None:
            yield from _section(document()["$defs"][name], f"{path}{key}.")


def _table(section: Schema, path: str, heading: str) -> Iterator[str]:
    yield f"\n{heading}\n\n{one_line(section['description'])}\n"
    yield from HEAD
    for key, field in section["properties"].items():
        if (name := _section_of(field)) is not None:
            page = "" if path else f"{CONFIGURATION}/{_group_of(key).name}.md"
            kind, default = f"[a section]({page}#{_anchor(path + key)})", ""
            description = document()["$defs"][name]["description"]
        else:
            kind, default, description = type_text(field), _default(field), field["description"]
        yield f"| `{path}{key}` | {kind} | {default} | {one_line(description)} |"
    yield ""


def _listed(schema: object) -> Iterator[str]:
    """Yield the types of what lists are of."""
    for each in schema.values() if isinstance(schema, Mapping) else ():
        if isinstance(each, Mapping) and "$ref" in each.get("items", {}):
            yield type_name(each["items"])
        yield from _listed(each)


def _section_of(field: Schema) -> str | None:
    if "$ref" not in field or type_name(field) in _shared():
        return None
    return type_name(field)


def _default(field: Schema) -> str:
    if "default" not in field:
        return "required"
    value = field["default"]
    if value is None:
        return "none"
    if isinstance(value, dict):
        value = {key: each for key, each in value.items() if each is not None}
    return f"`{yaml.safe_dump(value, default_flow_style=True, width=1000).splitlines()[0]}`"


def _anchor(path: str) -> str:
    return path.replace(".", "")
