"""The documentation as a site: it is built strictly, whole, and needs nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import markdown
import pytest
import yaml
from markdown_it import MarkdownIt
from tests.support.pages import Page

from aiperf_hpc.results.report.schema import schema_text

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
BLOCKS = ("h2", "h3", "li", "ol", "pre", "table", "tr", "ul")


def test_every_page_is_built_and_loads_nothing_from_elsewhere(site: Path) -> None:
    built = list(site.rglob("*.html"))
    assert len(built) > len(PAGES)
    for page in built:
        elements = Page(page.read_text("utf-8")).elements
        loaded = [
            (a.get("href" if tag == "link" else "src")) for tag, a, _ in elements if tag != "a"
        ]
        addresses = [address for address in loaded if address]
        assert addresses
        assert [each for each in addresses if urlsplit(each).netloc] == [], page.name


def test_the_schema_of_reports_is_in_the_site(site: Path) -> None:
    assert 'href="report.schema.json"' in (site / "report.html").read_text("utf-8")
    assert (site / "report.schema.json").read_text("utf-8") == schema_text()


def test_links_out_of_the_site_are_paths_in_the_repository(site: Path) -> None:
    page = (site / "nni.html").read_text("utf-8")
    assert "examples/nni/experiment.py" in page
    assert 'href="../examples' not in page
    assert 'href="decisions/nfs.html"' in (site / "administrators.html").read_text("utf-8")


def test_every_page_has_its_row_in_the_navigation() -> None:
    listed = set(rows(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in PAGES}
    assert pages - listed == set(), "add a row to nav in mkdocs.yml"


def rows(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
        return
    assert isinstance(nav, list | dict)
    for each in nav.values() if isinstance(nav, dict) else nav:
        yield from rows(each)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_the_same_in_the_site_as_in_the_checkout(page: Path) -> None:
    """What CommonMark takes for a list or a table, the site's Markdown does too.

    It wants an empty line before a list, and what belongs to an item 4 spaces in.
    """
    text = page.read_text("utf-8")
    common = MarkdownIt("commonmark").enable("table").render(text)
    ours = markdown.markdown(text, extensions=["tables", "pymdownx.superfences"])
    assert blocks(ours) == blocks(common)


def blocks(page: str) -> dict[str, int]:
    return {tag: len(re.findall(f"<{tag}[ >]", page)) for tag in BLOCKS}
