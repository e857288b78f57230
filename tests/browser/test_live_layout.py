"""The live page fits windows of any width, and axe finds nothing."""

from __future__ import annotations

import urllib.request

import pytest
from tests.browser.accessibility import assert_accessible
from tests.browser.live_page import DESK, NAME, PHONE, RUN, TOKEN, WALL, Page
from tests.browser.live_run import LiveRun
from tests.service.fake_primaries import FakePrimaries

pytestmark = pytest.mark.browser


def _submit(page: Page) -> None:
    request = urllib.request.Request(  # noqa: S310 -- loopback
        f"{page.url}/api/v1/runs",
        data=b'{"nodes": 1, "hours": 1}',
        headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        assert answer.status == 202


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK, WALL])
def test_axe_finds_nothing_and_nothing_sticks_out(
    changed: tuple[Page, FakePrimaries], live: LiveRun, axe: str, width: int, scheme: str
) -> None:
    page, primaries = changed
    primaries.other = "another run computes here"
    _submit(page)
    live.damage("r1")
    family = live.family()
    live.sample()
    live.paths.replica_log("r0").write_text("a long line " * 50)
    trial = f"{RUN}/trials/{family.child}"
    for fragment, part, ready in (("", "list", NAME), (trial, "trial", "Layers")):
        page.open(fragment, width=width, scheme=scheme, policy=False)
        page.shows(f"[data-part={part}]", ready)
        page.shows(
            "[data-part=changes]" if fragment else "#queue table", "top" if fragment else "Cancel"
        )
        if fragment:
            page.shows("[data-part=tree]", family.grandchild)
            page.shows("[data-part=time]", "train")
            page.enter("[data-of=output] select", "r0")
            page.shows("[data-part=output]", "a long line")
        assert_accessible(page.browser, axe)
        assert page.evaluate("document.documentElement.scrollWidth") == width


HIDDEN = """(() => {
  it.closest('details')?.setAttribute('open', '');
  it.scrollIntoView({block: 'center', inline: 'nearest', behavior: 'instant'});
  const box = it.getBoundingClientRect();
  const corners = [[box.left + 3, box.top + 3], [box.right - 3, box.bottom - 3]];
  return !corners.every(([x, y]) => it.contains(document.elementFromPoint(x, y)));
})() ? it.textContent : null"""
"""The text of a button if not all of it is visible when it is scrolled to."""


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize(("fragment", "ready"), [("", NAME), (RUN, "1–3 of 3 trials")])
def test_every_button_is_visible_when_it_is_scrolled_to(
    page: Page, live: LiveRun, width: int, fragment: str, ready: str
) -> None:
    live.family()
    page.open(fragment, width=width)
    page.shows("main", ready)
    found = page.all("main section:not([hidden]) button", HIDDEN)
    assert len(found) >= 9
    assert [text for text in found if text is not None] == []
