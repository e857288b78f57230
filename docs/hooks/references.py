"""MkDocs hook: insert the generated references into their pages and add the generated pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import commands
import configuration
import metrics
import report
import rest

MARK = "<!-- generated -->"
REFERENCES: dict[str, Callable[[], Iterator[str]]] = {
    "reference/commands.md": commands.reference,
    "reference/configuration.md": configuration.reference,
    "reference/report.md": report.reference,
    "reference/rest.md": rest.reference,
    "metrics.md": metrics.reference,
}
"""The generated part of each page that has one."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each group of settings and of routes."""
    for folder, pages in (("configuration", configuration.pages()), ("rest", rest.pages())):
        for name, text in pages:
            files.append(File.generated(config, f"reference/{folder}/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Return a page with its generated part in the place of the mark."""
    if (reference := REFERENCES.get(page.file.src_uri)) is None:
        return markdown
    before, after = markdown.split(MARK)
    return "\n".join([before, *reference(), after])
