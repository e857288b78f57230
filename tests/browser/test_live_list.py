"""The list of runs, comparisons, and the documentation of the API."""

from __future__ import annotations

import pytest
from tests.browser.live_page import ADDRESS, NAME, RUN, Page
from tests.browser.live_run import LiveRun
from tests.support.run_factory import Plan, write_run
from tests.support.waiting import until

from aiperf_hpc.formatting import si
from aiperf_hpc.results.views import quantities
from aiperf_hpc.run.annotations import Annotations, write_annotations

pytestmark = pytest.mark.browser


def test_runs_are_listed_and_lead_to_one(page: Page, live: LiveRun) -> None:
    over = write_run(live.paths.root.parent / "over", Plan(replicas=1, trials=1, hpo_trials=0))
    write_annotations(over, Annotations(tags=("v100",), note=NAME))
    (live.paths.root.parent / "bad").mkdir()
    (live.paths.root.parent / "bad" / "run.yaml").write_text("{")
    page.open()
    page.shows("table.runs", f"overv100{NAME}")
    page.shows("#unreadable", "bad cannot be read")
    assert page.count("table.runs img") == 0
    page.click("table.runs a[href*=img]")
    page.shows("h1", NAME)
    page.shows("#subtitle", "running")


def test_a_headline_figure_that_the_table_gains_is_on_the_page(
    page: Page, live: LiveRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    si, value = quantities.Format.SI, lambda run: 5e9 + run.score.ops
    row = quantities.Quantity("gained", "Gained", "GAIN", value, si, "A figure.")
    monkeypatch.setattr(quantities, "QUANTITIES", (*quantities.QUANTITIES, row))
    live.begin()
    page.open()
    page.shows("table.runs thead", "Gained")
    page.shows("table.runs tbody", " GGAIN")
    page.open(RUN)
    page.shows("#gained", " GGAIN")


def test_runs_are_searched_selected_and_compared(page: Page, live: LiveRun) -> None:
    for name in ("pair-a", "pair-b"):
        write_run(live.paths.root.parent / name, Plan(replicas=1, trials=2, hpo_trials=0))
    page.open()
    for name in ("pair-a", "pair-b"):
        page.shows("table.runs", name)
    page.click("table.runs button[data-sort=name]")
    page.shows("table.runs [aria-sort=descending]", "Run")
    assert _names(page) == sorted(("pair-a", "pair-b", NAME), reverse=True)
    page.enter("[name=search]", "PAIR")
    until(lambda: _names(page) == ["pair-b", "pair-a"], lambda: _names(page))
    for name in ("pair-a", "pair-b"):
        page.click(f"table.runs input[value={name}]")
    page.shows("[data-part=compare] a", "Compare 2 runs")
    page.click("[data-part=compare] a")
    compared = page.api("compare?run=pair-a&run=pair-b")
    verdict = "Comparable" if compared["comparable"] else "Not comparable"
    page.shows("[data-part=verdict] strong", verdict)
    page.shows("[data-part=figures]", "Score")
    assert page.count("svg[data-chart=score] path") == 2
    expected = compared["sides"][0]["figures"]["ops"]["mean"]
    assert page.text("[data-part=figures] tbody td") == si(expected, "OPS")


def _names(page: Page) -> list[str]:
    """Return the names of the listed runs in their order on the page."""
    return page.all("table.runs tbody a", "it.textContent")


def test_a_run_opens_from_the_list_whatever_its_name(page: Page, live: LiveRun) -> None:
    write_run(live.paths.root.parent / "list", Plan(replicas=1, trials=1, hpo_trials=0))
    page.open()
    page.shows("table.runs", "list")
    page.evaluate("location.hash = '#/runs/list'")
    page.shows("h1", "list")
    page.evaluate(f"location.hash = '#/compare/list/{ADDRESS}'")
    page.shows("h1", "Comparison")
    for alone in ("#/compare/list", "#/run/list"):
        page.evaluate(f"location.hash = '{alone}'")
        page.shows("#connection", f"There is no page at {alone}.")


def test_a_selected_state_stays_selected_when_another_one_appears(
    page: Page, live: LiveRun
) -> None:
    page.open()
    states = "[name=state]"
    page.shows(states, "allrunning")
    page.enter(states, "running")
    write_run(live.paths.root.parent / "over", Plan(replicas=1, trials=1, hpo_trials=0))
    page.shows(states, "allendedrunning")
    assert page.of(states, "it.value") == "running"


def test_the_documentation_sends_requests(page: Page, live: LiveRun) -> None:
    page.open("docs")
    form = "form[data-path='/api/v1/runs/{run}/trials']"
    page.enter(f"{form} [name=run]", NAME)
    page.enter(f"{form} [name=limit]", "5")
    page.click(f"{form} button")
    page.shows(f"{form} pre", '"limit": 5')
