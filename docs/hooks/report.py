"""MkDocs hook: the reference of report.json, made of its own JSON Schema."""

from __future__ import annotations

from collections.abc import Iterator

from mkdocs.structure.pages import Page

from aiperf_hpc.results.report.schema import report_schema
from schema_words import Schema, type_table

PAGE, MARK = "reference/report.md", "<!-- every key -->"


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Return the reference's page with all keys in the place of its mark."""
    if page.file.src_uri != PAGE:
        return markdown
    before, after = markdown.split(MARK)
    return "\n".join([before, *_reference(report_schema()), after])


def _reference(schema: Schema) -> Iterator[str]:
    yield "\n## The whole"
    yield from type_table("report.json", schema)
    yield "\n## Its parts"
    for name, part in sorted(schema["$defs"].items()):
        yield from type_table(name, part)
