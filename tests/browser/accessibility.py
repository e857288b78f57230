"""The rules of axe, on the page that a browser shows."""

from __future__ import annotations

import json

from tests.browser.chromium import Chromium


def assert_accessible(browser: Chromium, axe: str) -> None:
    """Open all details of a page and assert that axe finds nothing."""
    browser.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    browser.evaluate(f"{axe}; 0")
    found = browser.evaluate(
        "axe.run(document).then(result => ({passes: result.passes.map(rule => rule.id),"
        " violations: result.violations.map(rule =>"
        " [rule.id, rule.impact, rule.nodes.map(node => node.target.join(' '))])}))"
    )
    assert found["violations"] == [], json.dumps(found["violations"], indent=1)
    assert {"color-contrast", "document-title", "region"} <= set(found["passes"])
