"""MkDocs hook: the metrics of an analysis, with their definitions."""

from __future__ import annotations

from collections.abc import Iterator

from mkdocs.structure.pages import Page

from aiperf_hpc.analysis.metrics import METRICS

PAGE, MARK = "metrics.md", "<!-- every metric -->"


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Return the page with all metrics in the place of its mark."""
    if page.file.src_uri != PAGE:
        return markdown
    before, after = markdown.split(MARK)
    return "\n".join([before, *_table(), after])


def _table() -> Iterator[str]:
    yield "| of one training | definition | unit | source |"
    yield "|---|---|---|---|"
    for each in METRICS:
        yield f"| {each.title} | {each.definition} | {each.unit or '1'} | {each.source} |"
