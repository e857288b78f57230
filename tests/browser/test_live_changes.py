"""Runs are submitted, cancelled, stopped and resumed from the live page."""

from __future__ import annotations

import pytest
from tests.browser.live_page import RUN, TOKEN, Page
from tests.browser.live_run import LiveRun
from tests.service.fake_primaries import FakePrimaries
from tests.support.run_factory import Plan, write_run
from tests.support.waiting import until

from aiperf_hpc.run import records

pytestmark = pytest.mark.browser


def _fill(page: Page, values: dict[str, str]) -> None:
    for name, value in values.items():
        page.enter(f"#submit [name='{name}']", value)


def _use_token(page: Page) -> None:
    page.holds("!document.getElementById('token').hidden")
    page.enter("#token-text", TOKEN)
    page.click("#token button")


def test_runs_are_submitted_and_cancelled_with_a_token_that_the_tab_keeps(
    changed: tuple[Page, FakePrimaries],
) -> None:
    page, primaries = changed
    primaries.other = "another run computes here"
    page.open()
    page.shows("#queue", "There are no submissions")
    page.click("#submit summary")
    page.shows("#submit", "batch_size")
    batch_size = "settings.training.batch_size"
    _fill(page, {"name": "nightly", batch_size: "32", "settings.training.optimizer": "adam"})
    page.click("#submit form button")
    page.shows("#queue [data-part=outcome]", "a token is required")
    assert page.api("queue") == {"queue": []}
    _use_token(page)
    page.click("#submit form button")
    page.shows("#queue [data-part=outcome]", "Submission 000001 is in the queue")
    page.shows("#queue table", "another run computes here")
    submission = page.api("queue/000001")["submission"]
    assert (submission["name"], submission["settings"]) == (
        "nightly", {"training": {"batch_size": 32, "optimizer": "adam"}}
    )  # fmt: skip
    page.click("#queue button[data-path]")
    page.shows("#queue table", "cancelled")
    assert page.evaluate("localStorage.length") == 0
    _fill(page, {batch_size: "0", "name": ""})
    page.click("#submit form button")
    page.shows("#queue [data-part=outcome]", "this cannot run")
    page.shows(f"[name='{batch_size}'] + .error", "greater than or equal to 1")
    assert page.evaluate("document.activeElement.name") == batch_size
    _fill(page, {batch_size: ""})
    page.browser.call("Input.insertText", text="e")
    page.click("#submit form button")
    page.shows(f"[name='{batch_size}'] + .error", "should be a whole number")


def test_a_run_is_stopped_and_one_whose_primary_died_is_resumed(
    changed: tuple[Page, FakePrimaries], live: LiveRun
) -> None:
    page, primaries = changed
    page.open(RUN)
    page.shows("[data-part=changes] summary", "Stop this run")
    page.click("[data-part=changes] button")
    _use_token(page)
    assert not live.paths.stop_request.exists()
    page.click("[data-part=changes] button")
    until(live.paths.stop_request.exists, str)
    live.primary.write(records.StopRequested(reason="asked to"))
    page.shows("#subtitle", "stopping")
    assert page.count("[data-part=changes] button") == 0
    lost = Plan(replicas=1, trials=1, hpo_trials=0, ended=False)
    write_run(live.paths.root.parent / "lost", lost)
    page.open("#/runs/lost")
    page.shows("[data-part=changes]", "Resume this run")
    page.click("[data-part=changes] button[data-path$=resume]")
    until(lambda: primaries.commands == [("resume", "lost")], lambda: primaries.commands)
