"""The reference of the configuration, from the descriptions of its fields."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import yaml

from aiperf_hpc.config import RunConfig, preset_names, preset_text
from schema_tables import Schema, one_line, references, type_name, type_text

HEAD = ("| key | value | default | description |", "|---|---|---|---|")


def reference() -> Iterator[str]:
    """Yield a table for each section, the types of values and the presets."""
    whole = RunConfig.model_json_schema()
    listed = set(_listed(whole))
    uses = Counter(references(whole))
    shared = [name for name, times in uses.items() if times > 1 or name in listed]
    yield from _section(whole, whole, "", shared)
    yield "## Types of values"
    for name in shared:
        yield from _table(whole, whole["$defs"][name], "", shared, f"### {name}")
    yield "## Presets"
    for name in preset_names():
        yield f"\n### {name}\n\n```yaml\n{preset_text(name).strip()}\n```\n"


def _section(whole: Schema, section: Schema, path: str, shared: list[str]) -> Iterator[str]:
    """Yield a section's table, then those of the sections in it."""
    yield from _table(whole, section, path, shared, f"## {path[:-1] or 'Top level'}")
    for key, field in section["properties"].items():
        if (name := _section_of(field, shared)) is not None:
            yield from _section(whole, whole["$defs"][name], f"{path}{key}.", shared)


def _table(
    whole: Schema, section: Schema, path: str, shared: list[str], heading: str
) -> Iterator[str]:
    yield f"\n{heading}\n\n{one_line(section['description'])}\n"
    yield from HEAD
    for key, field in section["properties"].items():
        if (name := _section_of(field, shared)) is not None:
            kind, default = f"[a section](#{_anchor(path + key)})", ""
            description = whole["$defs"][name]["description"]
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


def _section_of(field: Schema, shared: list[str]) -> str | None:
    if "$ref" not in field or type_name(field) in shared:
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
