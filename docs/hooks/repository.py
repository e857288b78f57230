"""MkDocs hook: pages of the site that lie elsewhere in the repository, and links out of the site.

Links in Markdown lead from file to file of the checkout. In the site they lead from page to page;
what is no page of it, e.g. source code, is named by its path there.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from aiperf_hpc.results.report.schema import schema_text

ELSEWHERE = {
    "administrators.md": "deploy/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "changelog.md": "CHANGELOG.md",
}
"""Pages of the site by their file in the repository."""
SCHEMA = "report.schema.json"
"""The schema of reports, as it is in the site."""
PAGES = {file: page for page, file in ELSEWHERE.items()} | {"results/report/schema.py": SCHEMA}
"""Files of the site by the file in the repository that is them, or makes them."""
LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie elsewhere, and the schema of reports."""
    root = Path(config.config_file_path).parent
    for page, file in ELSEWHERE.items():
        text = (root / file).read_text("utf-8")
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, SCHEMA, content=schema_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page whose links lead to pages of the site."""
    source = ELSEWHERE.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    here = posixpath.dirname(source)

    def in_the_site(found: re.Match[str]) -> str:
        text, link, anchor = found[1], found[2], found[3] or ""
        target = posixpath.normpath(posixpath.join(here, link))
        name = PAGES.get(target, target.removeprefix("docs/"))
        if target not in PAGES and not target.startswith("docs/"):
            return text if target in text else f"{text} (`{target}`)"
        return f"[{text}]({posixpath.relpath(name, posixpath.dirname(page.file.src_uri))}{anchor})"

    return LINK.sub(in_the_site, markdown)
