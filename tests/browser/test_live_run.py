"""A run on the live page: each part shows what the service answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.browser.chromium import Chromium
from tests.browser.live_page import ADDRESS, RUN, Page
from tests.browser.live_run import LiveRun
from tests.support.run_factory import Grown, Plan, initial_graph, write_run
from tests.support.waiting import until

from aiperf_hpc.formatting import duration, exact, percent, si, size
from aiperf_hpc.service.runs import FolderOfRuns
from aiperf_hpc.service.served_run import Readers
from aiperf_hpc.service.server import ServerThread
from aiperf_hpc.trial import TimePhase

pytestmark = pytest.mark.browser


def test_it_shows_what_happens_by_itself(page: Page, live: LiveRun) -> None:
    """Each record is seen before the next is written; every figure is that of the interface."""
    page.open(RUN)
    page.shows("[data-part=in-flight]", "No trial is in progress")
    first = Grown(initial_graph(live.workers[0].config))
    trial = live.begin(0, first)
    page.shows("[data-part=in-flight]", trial)
    page.shows("ol.events li", f"{trial}started, round 1 of r0")
    live.epoch(trial, 1, correct=90)
    page.shows("#error", percent(0.75))
    live.half_epoch(trial, 2)
    page.shows(".epochs span", "2 of 60, 50% of it")
    page.agrees(lambda: _figures(page))
    live.finish(trial)
    page.shows("ol.events li", "completed with 75.00% error: the epoch limit")
    page.shows("[data-part=in-flight]", "No trial is in progress")
    live.primary.end()
    page.shows("#subtitle", "ended")
    page.agrees(lambda: _headline(page))


def test_of_one_network_it_shows_how_fast_models_reach_their_target(
    browser: Chromium, tmp_path: Path
) -> None:
    training = {"batch_size": 64, "precision": "fp32", "target": 0.5}
    config = {"search": {"method": "fixed"}, "training": training}
    with (
        LiveRun(tmp_path / "runs" / "models", config=config) as live,
        ServerThread(FolderOfRuns(tmp_path / "runs")) as server,
    ):
        page = Page(browser, server.url)
        page.open("#/runs/models")
        trial = live.begin()
        page.shows("#models", "none")
        page.shows("#models + .exact", "weak scaling: 2 concurrent models; 0 models ended")
        live.epoch(trial, 1, correct=270)
        live.finish(trial)
        page.shows("#median + .exact", "the median of 1 of 1 models")
        said = page.api("runs/models/status")["models"]
        page.shows("#median", duration(said["median_seconds"]))
        page.shows("[data-part=machines]", "1 trial")
        assert "queued" not in (page.text("[data-part=machines]") or "")
        assert browser.complaints == []


def test_a_part_is_drawn_again_after_a_failed_request(page: Page, live: LiveRun) -> None:
    """The next answer may equal the one before the failure."""
    family = live.family()
    page.open(RUN)
    page.shows("[data-part=tree]", family.grandchild)
    page.evaluate(
        "{ const request = fetch; window.fetch = (path, options) => window.fails && "
        "path.includes('/tree') ? Promise.reject(Error('no answer')) : request(path, options); }"
    )
    page.evaluate("window.fails = true")
    page.shows("[data-part=tree]", "no answer")
    page.evaluate("window.fails = false")
    page.shows("[data-part=tree]", family.grandchild)


def _headline(page: Page) -> dict[str, str]:
    score = page.api(f"runs/{ADDRESS}/status")["score"]
    return {
        "#score": si(score["ops"], "OPS"),
        "#score + .exact": f"{exact(float(score['operations'])).removesuffix('.0')} operations",
        "#regulated": si(score["regulated"], "OPS"),
        "#error": percent(score["error"]),
    }


def _figures(page: Page) -> dict[str, str]:
    (flight,) = page.api(f"runs/{ADDRESS}/in-flight")["trials"]
    trial = flight["trial"]
    return {
        **_headline(page),
        "table.flight tbody th": trial["id"],
        "table.flight td:nth-child(6)": percent(trial["best_quality"]),
        "table.flight td:nth-child(7)": duration(trial["seconds"]),
        "table.flight td:nth-child(8)": duration(flight["remaining_seconds"]),
    }


def test_the_tree_grows_and_leads_to_layers_and_curves_by_keyboard(
    page: Page, live: LiveRun
) -> None:
    family = live.family()
    page.open(RUN)
    page.shows("[data-part=tree]", family.grandchild)
    page.of(f"a[data-trial={family.parent}]", "it.focus()")
    page.press("ArrowRight")
    page.press("Enter")
    page.shows("#trial h2", f"Trial {family.child}")
    page.shows("#trial dl", f"Parent{family.parent}")
    detail = page.api(f"runs/{ADDRESS}/trials/{family.child}")
    page.shows("#trial dl", f"Children{detail['children'][0]}")
    page.shows("#trial dl", f"{detail['trial']['train_operations']:,} in training")
    assert page.count("table.layers tbody tr") == len(detail["layers"])
    assert page.count("table.layers .inserted") == sum(x["inserted"] for x in detail["layers"])
    label = page.of("#trial svg.chart", "it.ariaLabel")
    assert label == f"accuracy by epoch: {percent(detail['curve'][-1]['quality'])} after epoch 1"
    live.finish(family.grandchild)
    trial = live.begin(1)
    page.shows("[data-part=tree]", trial)
    assert page.text("#trial h2") == f"Trial {family.child}"
    page.of("#trial .close", "it.focus()")
    page.press("Enter")
    page.holds("document.getElementById('trial').hidden")
    focused = page.evaluate("document.activeElement.dataset.trial")
    assert focused == family.child, "where one was before"


def test_trials_are_sorted_filtered_and_lead_to_the_tree(page: Page, live: LiveRun) -> None:
    family = live.family()
    page.open(RUN)
    page.shows("[data-part=trials] tbody th", family.grandchild)
    page.click("[data-part=trials] button[data-sort=quality]")
    page.shows("[data-part=trials] [aria-sort=descending]", "Accuracy")
    page.click("[data-part=trials] button[data-sort=quality]")
    page.shows("[data-part=trials] [aria-sort=ascending]", "Accuracy")
    page.shows("[data-part=trials] tbody th", family.parent)
    page.enter("form[data-of=trials] [name=state]", "training")
    page.shows("[data-part=trials]", "1–1 of 1 trial")
    assert page.text("[data-part=trials] tbody th") == family.grandchild
    page.click("[data-part=trials] tbody td a")
    page.shows("#trial h2", f"Trial {family.grandchild}")
    until(lambda: page.count(f"svg.networks a[data-trial={family.grandchild}][aria-current]"))
    assert page.evaluate("document.activeElement.id") == "tree-title"
    best = page.api(f"runs/{ADDRESS}/trials?sort=quality&descending=true")["trials"][0]
    assert f"the best, {best['id']}, has" in page.of("svg.parallel", "it.ariaLabel")
    assert page.count("svg.parallel path") == 3


def test_ranges_filter_lines_and_the_table_of_trials(page: Page, live: LiveRun) -> None:
    family = live.family()
    page.open(RUN)
    page.holds("document.querySelectorAll('svg.parallel path').length === 3")
    page.of("[data-axis=quality]", "it.scrollIntoView({block: 'center', behavior: 'instant'})")
    box = page.of("[data-axis=quality]", "it.getBoundingClientRect().toJSON()")
    x, top = box["x"] + box["width"] / 2, box["y"]

    def mouse(kind: str, x: float, y: float) -> None:
        page.browser.call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y,
                          button="left", buttons=1, clickCount=1)  # fmt: skip

    mouse("Pressed", x, top)
    mouse("Moved", x, top + 30)
    # As a redraw does when elements change places.
    page.of("[data-axis=quality]", "(it.previousSibling.remove(), it.replaceWith(it.cloneNode()))")
    mouse("Moved", 1, top + 90)
    mouse("Released", 1, top + 90)
    page.shows("[data-part=parallel] [role=status]", "1 of these trials")
    page.shows("[data-part=trials]", "1–1 of 1 trial in the selected ranges")
    assert page.text("[data-part=trials] tbody th") == family.grandchild
    assert page.all("svg.parallel .out", "it.dataset.trial") == [family.parent, family.child]
    assert not page.evaluate("location.hash").endswith("trials"), "no trial was selected"
    page.press("Escape")
    page.shows("[data-part=trials]", "1–3 of 3 trials")
    assert page.count("svg.parallel .out") == 0
    page.enter(".ranges [name=quality]", "0.55")
    page.shows("[data-part=trials]", "1–2 of 2 trials in the selected ranges")
    page.click(".ranges button")
    page.holds("document.querySelectorAll('svg.parallel .out').length === 0")


def test_the_output_of_a_replica_is_followed(page: Page, live: LiveRun) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    log = live.paths.replica_log("r1")
    log.write_text(f"{hostile}\n" + "a line\n" * 300)
    page.open(RUN)
    page.holds("document.querySelectorAll('[data-of=output] option').length === 3")
    page.enter("[data-of=output] select", "r0")
    page.shows("[data-part=output]", "r0 has printed nothing.")
    page.enter("[data-of=output] select", "")
    page.shows("[data-part=output]", "Select a replica to read its output.")
    change = "(it.value = 'r1', it.dispatchEvent(new Event('change', {bubbles: true})))"
    text = "document.querySelector('[data-part=output]').textContent"
    assert page.of("[data-of=output] select", f"({change}, {text})") == "Loading."
    page.shows("[data-part=output]", "The last 200 lines")
    with log.open("a") as file:
        file.write(f"{hostile}\x1b[2J\n")
        file.flush()
        page.shows("pre.output", f"a line {hostile}\\x1b[2J")
        page.of("pre.output", "it.scrollTo(0, 0)")
        answers = ("performance.getEntriesByType('resource')"
                   ".filter(each => each.name.includes('/output')).length")  # fmt: skip
        before = page.evaluate(answers)
        file.write("later\n")
        file.flush()
        # The first may have been sent before "later" was written, the last may not be shown yet.
        page.holds(f"{answers} >= {before + 3}")
        assert "later" not in (page.text("pre.output") or ""), "the text is not moved"
        page.evaluate("dispatchEvent(new Event('resize'))")
        assert page.of("pre.output", "it.scrollTop") == 0
        page.of("pre.output", "it.scrollTo(0, it.scrollHeight)")
        page.shows("pre.output", "later")
    page.enter("[data-of=output] select", "")
    page.shows("[data-part=output]", "Select a replica")


def test_the_cursor_of_a_chart_is_moved_by_keys(page: Page, live: LiveRun) -> None:
    live.epoch(live.begin(), 1, correct=90)
    page.open(RUN)
    page.shows("[data-part=score] .legend", "score")
    page.of("svg[data-chart=quality]", "it.focus()")
    page.press("End")
    page.shows("svg[data-chart=quality] ~ .readout", "best error 75.00%")


def test_nodes_have_a_map_and_telemetry_curves(page: Page, live: LiveRun) -> None:
    for number in (0, 1):
        live.sample(number)
    page.open(RUN)
    page.shows("[data-part=node]", "node000")
    assert page.of("canvas", "it.ariaLabel").startswith("Map of 2 nodes: ")
    page.of("canvas", "{ const box = it.getBoundingClientRect(); const clientX = box.left + 1.5 *"
            " it.dataset.cell; it.dispatchEvent(new MouseEvent('click', {clientX, clientY: box.top"
            " + 3, bubbles: true})); }")  # fmt: skip
    page.shows("[data-part=node]", "node001")
    expected = [f"{n} of node001" for n in ("Utilization", "Power", "Memory", "Temperature")]

    def labels() -> list[str]:
        return page.all("[data-part=telemetry] svg.chart", "it.ariaLabel.split(' until')[0]")

    until(lambda: labels() == expected, labels)
    beside = (
        "import('/assets/machines.js').then(({nodeAt}) => nodeAt("
        "{getBoundingClientRect: () => ({left: 0, top: 0}), dataset: {cell: '10', across: '2'}},"
        " {clientX: 25, clientY: 5}, ['a', 'b', 'c']))"
    )
    assert page.evaluate(beside) is None


def test_events_are_filtered_and_shown_again(page: Page, live: LiveRun) -> None:
    page.open(RUN)
    page.shows("ol.events", "the run started")
    page.enter("form[data-of=events] select", "replica")
    until(lambda: page.count("ol.events li:not(.replica)") == 0)
    assert page.count("ol.events li")
    page.enter("form[data-of=events] select", "")
    trial = live.begin()
    page.shows("ol.events li", trial)
    page.shows("ol.events", "the run started")


def test_machines_time_and_the_course_of_the_score_are_the_interface_s(
    page: Page, live: LiveRun
) -> None:
    page.open(RUN)
    page.shows("#energy", "no replica has recorded any")
    live.finish(live.begin(), seconds={TimePhase.BUILD: 30.0, TimePhase.TRAIN: 270.0})
    page.shows("table.machines", "188% of a core")
    live.sample()
    page.shows("table.machines", "25%")
    page.shows("table.machines", "2 × 90%")
    page.shows("table.machines", "1.10 kW")
    page.shows("#energy", "Energy so far")
    overhead = page.api(f"runs/{ADDRESS}/telemetry")["now"]["overhead"]
    # To as many digits as in the report.
    page.shows("#energy", f"Sampling uses at most {percent(overhead, 3)} of a core.")
    live.primary.end()
    page.shows("#subtitle", "ended")

    def said() -> dict[str, str]:
        time = page.api(f"runs/{ADDRESS}/time")
        return {
            f"[data-phase='{phase['name']}'] dd": f"{percent(phase['fraction'], 1)}"
            f"{duration(phase['seconds'])}"
            for phase in time["phases"]
            if phase["fraction"] > 0.0
        }

    page.agrees(said)
    page.shows("[data-phase='unrecorded'] dt", "unrecorded")  # As the report calls it.
    violated = {each["rule"] for each in page.api(f"runs/{ADDRESS}/status")["violations"]}
    page.shows("details.verdict summary", f"{len(violated)} rules violated")
    page.shows("#subtitle", "2 replicas on 2 hosts, no accelerators (CPU: Example CPU 9000")
    assert {"build", "train", "unrecorded"} <= {key.split("'")[1] for key in said()}
    score = page.api(f"runs/{ADDRESS}/score")
    label = page.of("[data-part=score] svg", "it.ariaLabel")
    assert label.startswith(f"Score over time: {si(score['score']['ops'], 'OPS')} after")


def test_a_run_that_takes_long_to_read_is_shown_once_it_is(
    browser: Chromium, tmp_path: Path
) -> None:
    """Every first answer is that the run is being read; a run that has ended says nothing more."""
    write_run(tmp_path / "run", Plan(replicas=1, trials=2, hpo_trials=0))
    with ServerThread(FolderOfRuns(tmp_path, Readers(patience=0.0))) as server:
        page = Page(browser, server.url)
        page.open("#/runs/run")
        for part, text in {
            "events": "the run ended",
            "headline": "min",
            "score": "regulated score",
            "machines": "node000",
            "time": "train",
            "tree": "r0-t001",
            "files": "run.yaml",
        }.items():
            page.shows(f"[data-part={part}]", text)
    assert browser.complaints == []


NUMBERS = (
    0.0,
    0.05,
    1.5,
    59.94,
    59.96,
    61.5,
    999.4,
    1_023.6,
    3_599.6,
    12_345.678,
    86_400.0,
    3.21e15,
)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("si(number, 'OPS')", lambda number: si(number, "OPS")),
        ("duration(number)", duration),
        ("percent(number)", percent),
        ("size(number)", size),
    ],
)
def test_numbers_are_written_as_on_a_terminal(
    page: Page, call: str, words: Callable[[float], str]
) -> None:
    page.open()
    script = "import('/assets/format.js').then(({si, duration, percent, size}) => NUMBERS)"
    asked = script.replace("NUMBERS", f"{json.dumps(NUMBERS)}.map(number => {call})")
    assert page.evaluate(asked) == [words(number) for number in NUMBERS]
