"""The documentation's site as a browser draws it, on a phone and on a desk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.browser.chromium import Chromium
from tests.support.site import build_site

pytestmark = pytest.mark.browser

PAGES = ("index", "tutorials/laptop", "metrics", "reference/configuration", "reference/rest/trials")
RULES = {"rules": {"region": {"enabled": False}}}
"""The theme's own footer lies in none of its landmarks."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(tmp_path_factory.mktemp("site"))


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_its_window_and_axe_finds_nothing(
    browser: Chromium, axe: str, site: Path, page: str, width: int
) -> None:
    browser.open(site / f"{page}.html", width=width, scheme="light")
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    browser.evaluate(f"{axe}; 0")
    found = browser.evaluate(
        f"axe.run(document, {json.dumps(RULES)}).then(result => result.violations.map(rule =>"
        " [rule.id, rule.impact, rule.nodes.map(node => node.target.join(' '))]))"
    )
    assert found == [], json.dumps(found, indent=1)
