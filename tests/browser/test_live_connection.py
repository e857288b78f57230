"""What the live page does when the service refuses, ends or reports a problem."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.browser.chromium import Chromium
from tests.browser.live_page import RUN, Page
from tests.browser.live_run import LiveRun

from aiperf_hpc.service.endpoint import Endpoint
from aiperf_hpc.service.runs import FolderOfRuns
from aiperf_hpc.service.server import ServerThread

pytestmark = pytest.mark.browser


def test_what_needs_a_token_asks_for_it(browser: Chromium, live: LiveRun, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{'a' * 64}\n")
    tokens.chmod(0o600)
    endpoint = Endpoint(host="0.0.0.0", token_file=tokens)  # noqa: S104 -- as a centre would
    with ServerThread(FolderOfRuns(live.paths.root.parent), endpoint) as server:
        page = Page(browser, server.url.replace("0.0.0.0", "127.0.0.1"))  # noqa: S104
        page.open(RUN)
        page.shows("#connection", "a token is required")
        page.holds("!document.getElementById('token').hidden")
        page.of("#token-text", "it.focus()")
        browser.call("Input.insertText", text="a" * 64)
        page.press("Enter")
        page.shows("#subtitle", "running")
        assert page.of("#token", "it.hidden")


def test_a_connection_that_is_lost_is_said_and_made_again(browser: Chromium, live: LiveRun) -> None:
    folder = live.paths.root.parent
    with ServerThread(FolderOfRuns(folder)) as server:
        page = Page(browser, server.url)
        page.open(RUN)
        page.shows("#live", "live")
        page.shows("#subtitle", "running")
        endpoint = server.endpoint
    page.shows("#connection", "Connection lost, trying again")
    page.shows("#live", "not live")
    trial = live.begin()
    with ServerThread(FolderOfRuns(folder), endpoint):
        page.shows("[data-part=in-flight]", trial)
        page.holds("document.getElementById('connection').hidden")


def test_a_tab_that_is_seen_again_goes_on_where_it_was(page: Page, live: LiveRun) -> None:
    page.open(RUN)
    page.shows("ol.events", "the run started")
    _see(page, hidden=True)
    trial = live.begin()
    _see(page, hidden=False)
    page.shows("[data-part=in-flight]", trial)
    page.shows("ol.events li", f"{trial}started, round 1 of r0")
    numbers = page.all("ol.events li", "+it.dataset.number")
    assert numbers == list(range(len(numbers), 0, -1)), "each event once, none left out"


def _see(page: Page, *, hidden: bool) -> None:
    page.evaluate(
        f"Object.defineProperty(document, 'hidden', {{value: {json.dumps(hidden)},"
        " configurable: true}); document.dispatchEvent(new Event('visibilitychange'))"
    )


def test_what_is_wrong_with_a_run_is_said(page: Page, live: LiveRun) -> None:
    page.open(RUN)
    page.shows("#subtitle", "running")
    live.damage("r0")
    page.shows("#problems", "not a record")
    page.open("#/runs/none")
    page.shows("#connection", "there is no run 'none'")
    assert all("404" in each for each in page.browser.complaints)
    page.browser.complaints.clear()
