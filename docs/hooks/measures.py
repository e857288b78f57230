"""MkDocs hook: the measures of an analysis, with the definitions in their docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from mkdocs.structure.pages import Page

from aiperf_hpc.analysis.analysis import MEASURES
from aiperf_hpc.analysis.measured import Measure

PAGE, MARK = "metrics.md", "<!-- every measure -->"


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Return the page with all measures in the place of its mark."""
    if page.file.src_uri != PAGE:
        return markdown
    before, after = markdown.split(MARK)
    return "\n".join([before, *_table(), after])


def _table() -> Iterator[str]:
    yield "| of one training | definition | unit | source |"
    yield "|---|---|---|---|"
    for each in MEASURES:
        yield f"| {each.title} | {_definition(each)} | {each.unit or '1'} | {each.source} |"


def _definition(measure: Measure) -> str:
    """Return a docstring's first paragraph without ``Return`` and without its source."""
    text = (inspect.getdoc(measure.of) or "").split("\n\n")[0]
    said = re.sub(r"\s*\[[^]]*\]$", "", " ".join(text.split()).replace("``", "`"))
    return said.removeprefix("Return ")
