"""All pages as a browser draws them: on a phone and on a desk, light and dark."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image
from tests.browser.accessibility import assert_accessible
from tests.browser.chromium import Chromium
from tests.browser.conftest import TRIALS

pytestmark = pytest.mark.browser

PHONE, DESK = 320, 1280
PAGES = ("long", "models", "damaged", "empty", "analysis", "card", "ranking")
LEAST_TYPE = 9.0
"""Pixels: the smallest type that is legible."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("report", PAGES)
def test_axe_finds_nothing(
    browser: Chromium, axe: str, reports: dict[str, Path], report: str, width: int, scheme: str
) -> None:
    browser.open(reports[report], width=width, scheme=scheme)
    assert_accessible(browser, axe)


def test_printed_text_has_enough_contrast(
    browser: Chromium, axe: str, reports: dict[str, Path]
) -> None:
    browser.open(reports["long"], width=DESK, scheme="paper")
    browser.evaluate(f"{axe}; 0")
    found = browser.evaluate("""
        axe.run({runOnly: ['color-contrast']}).then(result => [
            result.violations.flatMap(rule => rule.nodes.map(node => node.html.slice(0, 100))),
            result.passes.map(rule => rule.id)
        ])
    """)
    assert found == [[], ["color-contrast"]]


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("report", PAGES)
def test_nothing_sticks_out_of_the_window(
    browser: Chromium, reports: dict[str, Path], report: str, width: int
) -> None:
    browser.open(reports[report], width=width, scheme="light")
    browser.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate(f"""
        [...document.querySelectorAll('main *, header *, nav *, footer *')]
        .filter(each => !each.parentElement.closest('[role=region]'))
        .filter(each => each.getBoundingClientRect().right > {width})
        .map(each => each.outerHTML.slice(0, 100))
    """) == []  # fmt: skip


def test_what_is_wider_than_a_phone_is_scrolled_to_by_keyboard(
    browser: Chromium, reports: dict[str, Path]
) -> None:
    browser.open(reports["long"], width=PHONE, scheme="light")
    browser.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    scrolled = browser.evaluate("""
        [...document.querySelectorAll('[role=region]')]
        .filter(each => each.scrollWidth > each.clientWidth)
        .map(each => {
            each.focus();
            each.scrollLeft = 1e6;
            const seen = each.scrollLeft + each.clientWidth >= each.scrollWidth - 1;
            return [each.ariaLabel, document.activeElement === each && seen];
        })
    """)
    assert len(scrolled) >= 8
    assert all(reached for _, reached in scrolled), scrolled


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_all_type_is_large_enough(browser: Chromium, reports: dict[str, Path], width: int) -> None:
    browser.open(reports["long"], width=width, scheme="light")
    sizes = browser.evaluate("""
        [...document.querySelectorAll('body *')]
        .filter(each => [...each.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
        .filter(each => each.checkVisibility() && each.tagName !== 'title')
        .map(each => {
            const drawn = each.ownerSVGElement ? each.getScreenCTM() : {c: 0, d: 1};
            const size = parseFloat(getComputedStyle(each).fontSize) * Math.hypot(drawn.c, drawn.d);
            return [each.textContent.trim().slice(0, 30), size];
        })
    """)
    assert len(sizes) > 500
    small = [each for each in sizes if each[1] < LEAST_TYPE]
    assert small == []


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_the_tree_is_seen(browser: Chromium, reports: dict[str, Path], width: int) -> None:
    """Every architecture's circle lies whole within its cell, and nothing else lies on it."""
    browser.open(reports["long"], width=width, scheme="light")
    hidden = browser.evaluate("""
        [...document.querySelectorAll('td.lines circle')].map(circle => {
            circle.scrollIntoView({block: 'center', inline: 'nearest', behavior: 'instant'});
            const own = circle.getBoundingClientRect();
            const cell = circle.closest('td').getBoundingClientRect();
            const top = document.elementFromPoint(own.x + own.width / 2, own.y + own.height / 2);
            return own.left >= cell.left && own.right <= cell.right && top === circle;
        })
    """)
    assert len(hidden) > TRIALS
    assert all(hidden)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_the_trials_on_the_time_line_are_told_apart(
    browser: Chromium, reports: dict[str, Path], width: int, scheme: str
) -> None:
    """In the middle of each lane, as many stretches are colored as there were trials."""
    browser.open(reports["long"], width=width, scheme=scheme)
    # A picture of the whole of a region that scrolls: for as long as it takes, it does not.
    browser.evaluate("document.querySelectorAll('.scroll').forEach("
                     "each => each.style.overflow = 'visible')")  # fmt: skip
    boxes = browser.evaluate("""
        [...document.querySelectorAll('svg.lane')].map(each => {
            const box = each.getBoundingClientRect();
            return {x: box.x + scrollX, y: box.y + scrollY + 22, width: box.width, height: 2};
        })
    """)
    assert len(boxes) == 2
    for box in boxes:
        picture = Image.open(io.BytesIO(browser.screenshot(box))).convert("RGB")
        background = (255, 255, 255) if scheme == "light" else (0x19, 0x1D, 0x21)
        row = [_alike(picture.getpixel((x, 0)), background) for x in range(picture.width)]
        runs = sum(here < before for before, here in zip([True, *row], row, strict=False))
        assert runs == TRIALS


def _alike(color: object, other: tuple[int, int, int]) -> bool:
    assert isinstance(color, tuple)
    return all(abs(a - b) < 40 for a, b in zip(color, other, strict=True))
