"""The live page as a browser draws it, of a run that lasts."""

from __future__ import annotations

import contextlib
import json
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.browser.chromium import Chromium
from tests.browser.live_run import LiveRun
from tests.service.fake_primaries import FakePrimaries
from tests.support.run_factory import Grown, Plan, initial_graph, write_run
from tests.support.waiting import until

from aiperf_hpc.formatting import duration, exact, percent, si, size
from aiperf_hpc.results.views import quantities
from aiperf_hpc.run import records
from aiperf_hpc.run.annotations import Annotations, write_annotations
from aiperf_hpc.service.endpoint import Endpoint
from aiperf_hpc.service.run_queue import RunQueue
from aiperf_hpc.service.runs import FolderOfRuns
from aiperf_hpc.service.served_run import Readers
from aiperf_hpc.service.server import ServerThread
from aiperf_hpc.trial import TimePhase

pytestmark = pytest.mark.browser

PHONE, DESK = 390, 1280
NAME = "a run <img src=x onerror=alert(1)> of ours"
"""A name that is data, whatever it looks like."""


class Page:
    """The page of a service, in a browser."""

    def __init__(self, browser: Chromium, url: str) -> None:
        self.browser, self.url = browser, url

    def open(self, fragment: str = "", **how: Any) -> None:  # noqa: ANN401
        how = {"width": DESK, "scheme": "light", "policy": True, **how}
        self.browser.open("about:blank", **how)  # The address may differ by its fragment alone.
        self.browser.open(f"{self.url}/{fragment}", **how)

    def text(self, selector: str) -> str | None:
        """Return the text of the first such element, with single spaces; None without one."""
        found = self.browser.evaluate(
            f"document.querySelector({json.dumps(selector)})?.textContent"
        )
        return None if found is None else " ".join(str(found).split())

    def count(self, selector: str) -> int:
        script = f"document.querySelectorAll({json.dumps(selector)}).length"
        return int(self.browser.evaluate(script))

    def press(self, key: str) -> None:
        """Press a key, as a hand does."""
        more = {"text": "\r", "windowsVirtualKeyCode": 13} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **more)

    def shows(self, selector: str, text: str) -> None:
        """Wait until an element has a text in it."""
        until(
            lambda: text in (self.text(selector) or ""),
            lambda: (selector, text, self.text(selector), self.browser.complaints),
        )

    def api(self, path: str) -> Any:  # noqa: ANN401
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}") as answer:  # noqa: S310 -- loopback
            return json.loads(answer.read())

    def agrees(self, said: Callable[[], dict[str, str]]) -> None:
        """Wait until elements have the texts that the interface says, which change each second."""

        def difference() -> dict[str, tuple[str, str | None]]:
            return {k: (v, self.text(k)) for k, v in said().items() if self.text(k) != v}

        until(lambda: not difference(), difference)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveRun]:
    with LiveRun(tmp_path / "runs" / NAME.replace("/", "")) as run:
        yield run


@pytest.fixture
def page(browser: Chromium, live: LiveRun) -> Iterator[Page]:
    with ServerThread(FolderOfRuns(live.paths.root.parent)) as server:
        yield Page(browser, server.url)


TOKEN = "a-token-of-the-tests"  # noqa: S105 -- no secret


@pytest.fixture
def changed(
    browser: Chromium, live: LiveRun, tmp_path: Path
) -> Iterator[tuple[Page, FakePrimaries]]:
    """The page of a service that changes what is in its folder; nothing is really started."""
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text(TOKEN)
    folder, primaries = live.paths.root.parent, FakePrimaries()
    with contextlib.ExitStack() as stack:
        conductor = RunQueue(folder, primaries)
        stack.enter_context(conductor.working())
        endpoint = Endpoint(token_file=tokens)
        server = ServerThread(FolderOfRuns(folder), endpoint, queue=conductor)
        yield Page(browser, stack.enter_context(server).url), primaries


ADDRESS = urllib.parse.quote(NAME, safe="")
RUN = f"#/runs/{ADDRESS}"


def test_runs_are_listed_and_lead_to_one(page: Page, live: LiveRun) -> None:
    over = write_run(live.paths.root.parent / "over", Plan(replicas=1, trials=1, hpo_trials=0))
    write_annotations(over, Annotations(tags=("v100",), note=NAME))
    (live.paths.root.parent / "bad").mkdir()
    (live.paths.root.parent / "bad" / "run.yaml").write_text("{")
    page.open()
    page.shows("table.runs", f"overv100{NAME}")
    page.shows("#unreadable", "bad cannot be read")
    assert page.browser.evaluate("document.querySelectorAll('table.runs img').length") == 0
    page.browser.evaluate("[...document.querySelectorAll('table.runs a')]"
                          f".find(a => a.textContent === {json.dumps(NAME)}).click()")  # fmt: skip
    page.shows("h1", NAME)
    page.shows("#subtitle", "running")
    assert page.browser.complaints == []


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
    assert page.browser.complaints == []


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
        page.shows("#models + .exact", "weak scaling: 2 models at once; 0 models ended")
        live.epoch(trial, 1, correct=270)
        live.finish(trial)
        page.shows("#median + .exact", "the median of 1 of 1 models")
        said = page.api("runs/models/status")["models"]
        page.shows("#median", duration(said["median_seconds"]))
        page.shows("[data-part=machines]", "1 trial")
        assert "in stock" not in (page.text("[data-part=machines]") or "")
        assert browser.complaints == []


def test_a_headline_figure_that_the_table_gains_is_on_the_page(
    page: Page, live: LiveRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = quantities.Quantity(
        "gained",
        "Gained",
        "GAIN",
        lambda run: 5e9 + run.score.ops,
        quantities.Format.SI,
        "A figure.",
    )
    monkeypatch.setattr(quantities, "QUANTITIES", (*quantities.QUANTITIES, row))
    live.begin()
    page.open()
    page.shows("table.runs thead", "Gained")
    page.shows("table.runs tbody", " GGAIN")
    page.open(f"#/runs/{ADDRESS}")
    page.shows("#gained", " GGAIN")


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


@dataclass(frozen=True)
class Family:
    """A trial, one grown from it, and one grown from that, which is under way."""

    parent: str
    child: str
    grandchild: str


def _family(live: LiveRun) -> Family:
    grown, trials = Grown(initial_graph(live.workers[0].config)), list[str]()
    for number in range(3):
        trials.append(live.begin(0, grown))
        live.epoch(trials[-1], 1, correct=180 + 30 * number)
        if number < 2:
            live.finish(trials[-1])
            grown = live.grow(0, grown, trials[-1])
    return Family(*trials)


def test_the_tree_grows_and_leads_to_layers_and_curves_by_keyboard(
    page: Page, live: LiveRun
) -> None:
    family = _family(live)
    page.open(RUN)
    page.shows("[data-part=tree]", family.grandchild)
    page.browser.evaluate(f"document.querySelector('a[data-trial={family.parent}]').focus()")
    page.press("ArrowRight")
    page.press("Enter")
    page.shows("#trial h2", f"Trial {family.child}")
    page.shows("#trial dl", f"Parent{family.parent}")
    detail = page.api(f"runs/{ADDRESS}/trials/{family.child}")
    page.shows("#trial dl", f"Children{detail['children'][0]}")
    page.shows("#trial dl", f"{detail['trial']['train_operations']:,} in training")
    assert page.count("table.layers tbody tr") == len(detail["layers"])
    assert page.count("table.layers .inserted") == sum(x["inserted"] for x in detail["layers"])
    label = page.browser.evaluate("document.querySelector('#trial svg.chart').ariaLabel")
    assert label == f"accuracy by epoch: {percent(detail['curve'][-1]['quality'])} after epoch 1"
    live.finish(family.grandchild)
    trial = live.begin(1)
    page.shows("[data-part=tree]", trial)
    assert page.text("#trial h2") == f"Trial {family.child}"
    page.browser.evaluate("document.querySelector('#trial .close').focus()")
    page.press("Enter")
    until(lambda: page.browser.evaluate("document.getElementById('trial').hidden"), str)
    focused = page.browser.evaluate("document.activeElement.dataset.trial")
    assert focused == family.child, "where one was before"
    assert page.browser.complaints == []


def test_trials_are_sorted_filtered_and_lead_to_the_tree(page: Page, live: LiveRun) -> None:
    family = _family(live)
    page.open(RUN)
    page.shows("[data-part=trials] tbody th", family.grandchild)
    _click(page, "[data-part=trials] button[data-sort=quality]")
    page.shows("[data-part=trials] [aria-sort=descending]", "Accuracy")
    _click(page, "[data-part=trials] button[data-sort=quality]")
    page.shows("[data-part=trials] [aria-sort=ascending]", "Accuracy")
    page.shows("[data-part=trials] tbody th", family.parent)
    page.browser.evaluate(
        "const form = document.querySelector('form[data-of=trials]');"
        "form.elements.state.value = 'training'; form.dispatchEvent(new Event('change'))"
    )
    page.shows("[data-part=trials]", "1–1 of 1 trial")
    assert page.text("[data-part=trials] tbody th") == family.grandchild
    _click(page, "[data-part=trials] tbody td a")
    page.shows("#trial h2", f"Trial {family.grandchild}")
    until(lambda: page.count(f"svg.networks a[data-trial={family.grandchild}][aria-current]"), str)
    assert page.browser.evaluate("document.activeElement.id") == "tree-title"
    best = page.api(f"runs/{ADDRESS}/trials?sort=quality&descending=true")["trials"][0]
    label = page.browser.evaluate("document.querySelector('svg.parallel').ariaLabel")
    assert f"the best, {best['id']}, has" in label
    assert page.count("svg.parallel path") == 3
    assert page.browser.complaints == []


def test_the_cursor_of_a_chart_is_moved_by_keys(page: Page, live: LiveRun) -> None:
    live.epoch(live.begin(), 1, correct=90)
    page.open(RUN)
    page.shows("[data-part=score] .legend", "score")
    page.browser.evaluate("document.querySelector('svg[data-chart=quality]').focus()")
    page.press("End")
    page.shows("svg[data-chart=quality] ~ .readout", "best error 75.00%")


def test_nodes_have_a_map_and_telemetry_curves(page: Page, live: LiveRun) -> None:
    for number in (0, 1):
        live.sample(number)
    page.open(RUN)
    page.shows("[data-part=node]", "node000")
    shape = "(c => [c.ariaLabel, Number(c.dataset.cell)])(document.querySelector('canvas'))"
    label, cell = page.browser.evaluate(shape)
    assert label.startswith("Map of 2 nodes: ")
    page.browser.evaluate("(c => { const box = c.getBoundingClientRect(); c.dispatchEvent(new"
        f" MouseEvent('click', {{clientX: box.left + {1.5 * cell}, clientY: box.top + 3,"
        " bubbles: true})) })(document.querySelector('canvas'))")  # fmt: skip
    page.shows("[data-part=node]", "node001")
    labels = (
        "[...document.querySelectorAll('[data-part=telemetry] svg.chart')]"
        ".map(each => each.ariaLabel.split(' until')[0])"
    )
    expected = [f"{name} of node001" for name in
                ("Utilization", "Power", "Memory", "Temperature")]  # fmt: skip
    until(lambda: page.browser.evaluate(labels) == expected, lambda: page.browser.evaluate(labels))
    beside = (
        "import('/assets/machines.js').then(({nodeAt}) => nodeAt("
        "{getBoundingClientRect: () => ({left: 0, top: 0}), dataset: {cell: '10', across: '2'}},"
        " {clientX: 25, clientY: 5}, ['a', 'b', 'c']))"
    )
    assert page.browser.evaluate(beside) is None
    assert page.browser.complaints == []


def test_runs_are_searched_selected_and_compared(page: Page, live: LiveRun) -> None:
    for name in ("pair-a", "pair-b"):
        write_run(live.paths.root.parent / name, Plan(replicas=1, trials=2, hpo_trials=0))
    page.open()
    for name in ("pair-a", "pair-b"):
        page.shows("table.runs", name)
    _click(page, "table.runs button[data-sort=name]")
    page.shows("table.runs [aria-sort=descending]", "Run")
    assert _names(page) == sorted(("pair-a", "pair-b", NAME), reverse=True)
    page.browser.evaluate(
        "const search = document.querySelector('[name=search]'); search.value = 'PAIR';"
        "search.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    until(lambda: _names(page) == ["pair-b", "pair-a"], lambda: _names(page))
    for name in ("pair-a", "pair-b"):
        _click(page, f"table.runs input[value={name}]")
    page.shows("[data-part=compare] a", "Compare 2 runs")
    _click(page, "[data-part=compare] a")
    compared = page.api("compare?run=pair-a&run=pair-b")
    verdict = "Comparable" if compared["comparable"] else "Not comparable"
    page.shows("[data-part=verdict] strong", verdict)
    page.shows("[data-part=figures]", "Score")
    assert page.count("svg[data-chart=score] path") == 2
    expected = compared["sides"][0]["figures"]["ops"]["mean"]
    assert page.text("[data-part=figures] tbody td") == si(expected, "OPS")
    assert page.browser.complaints == []


def _names(page: Page) -> list[str]:
    """Return the names of the listed runs in their order on the page."""
    script = "[...document.querySelectorAll('table.runs tbody a')].map(each => each.textContent)"
    return [str(each) for each in page.browser.evaluate(script)]


def test_a_run_opens_from_the_list_whatever_its_name(page: Page, live: LiveRun) -> None:
    write_run(live.paths.root.parent / "list", Plan(replicas=1, trials=1, hpo_trials=0))
    page.open()
    page.shows("table.runs", "list")
    page.browser.evaluate("location.hash = '#/runs/list'")
    page.shows("h1", "list")
    page.browser.evaluate("location.hash = '#/compare/list'")
    page.shows("h1", "Comparison")
    assert page.browser.complaints == []


def test_a_selected_state_stays_selected_when_another_one_appears(
    page: Page, live: LiveRun
) -> None:
    page.open()
    states = "[name=state]"
    page.shows(states, "allrunning")
    page.browser.evaluate(f"document.querySelector('{states}').value = 'running'")
    write_run(live.paths.root.parent / "over", Plan(replicas=1, trials=1, hpo_trials=0))
    page.shows(states, "allendedrunning")
    assert page.browser.evaluate(f"document.querySelector('{states}').value") == "running"


def _select_kind(page: Page, kind: str) -> None:
    page.browser.evaluate(
        "(form => { form.elements.kind.value = KIND; form.dispatchEvent(new Event('change')) })"
        "(document.querySelector('form[data-of=events]'))".replace("KIND", json.dumps(kind))
    )


def test_events_are_filtered_and_shown_again(page: Page, live: LiveRun) -> None:
    page.open(RUN)
    page.shows("ol.events", "the run started")
    _select_kind(page, "replica")
    until(lambda: page.count("ol.events li:not(.replica)") == 0, str)
    assert page.count("ol.events li")
    _select_kind(page, "")
    trial = live.begin()
    page.shows("ol.events li", trial)
    page.shows("ol.events", "the run started")
    assert page.browser.complaints == []


def test_the_documentation_sends_requests(page: Page, live: LiveRun) -> None:
    page.open("docs")
    form = "form[data-path='/api/v1/runs/{run}/trials']"
    page.browser.evaluate(f"const form = document.querySelector({json.dumps(form)}); form"
        f".elements.run.value = {json.dumps(NAME)}; form.elements.limit.value = 5; 0")  # fmt: skip
    _click(page, f"{form} button")
    page.shows(f"{form} pre", '"limit": 5')
    assert page.browser.complaints == []


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
    page.shows("#energy", f"Sampling takes {percent(overhead, 3)} of a core at most.")
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
    label = page.browser.evaluate("document.querySelector('[data-part=score] svg').ariaLabel")
    assert label.startswith(f"Score over time: {si(score['score']['ops'], 'OPS')} after")
    assert page.browser.complaints == []


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


NUMBERS = (0.0, 0.05, 1.5, 59.94, 59.96, 61.5, 999.4, 3_599.6, 12_345.678, 86_400.0, 3.21e15)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("si(number, 'OPS')", lambda number: si(number, "OPS")),
        ("duration(number)", duration),
        ("percent(number)", percent),
        ("size(number)", lambda number: size(round(number))),
    ],
)
def test_numbers_are_written_as_on_a_terminal(
    page: Page, call: str, words: Callable[[float], str]
) -> None:
    page.open()
    script = "import('/assets/format.js').then(({si, duration, percent, size}) => NUMBERS)"
    asked = script.replace("NUMBERS", f"{json.dumps(NUMBERS)}.map(number => {call})")
    assert page.browser.evaluate(asked) == [words(number) for number in NUMBERS]


def test_what_needs_a_token_asks_for_it(browser: Chromium, live: LiveRun, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{'a' * 64}\n")
    tokens.chmod(0o600)
    endpoint = Endpoint(host="0.0.0.0", token_file=tokens)  # noqa: S104 -- as a centre would
    with ServerThread(FolderOfRuns(live.paths.root.parent), endpoint) as server:
        page = Page(browser, server.url.replace("0.0.0.0", "127.0.0.1"))  # noqa: S104
        page.open(RUN)
        page.shows("#connection", "a token is needed")
        until(lambda: not browser.evaluate("document.getElementById('token').hidden"), str)
        browser.evaluate("document.getElementById('token-text').focus()")
        browser.call("Input.insertText", text="a" * 64)
        page.press("Enter")
        page.shows("#subtitle", "running")
        assert browser.evaluate("document.getElementById('token').hidden")


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
        until(lambda: browser.evaluate("document.getElementById('connection').hidden"), str)


def test_a_tab_that_is_seen_again_goes_on_where_it_was(page: Page, live: LiveRun) -> None:
    page.open(RUN)
    page.shows("ol.events", "the run started")
    _see(page, hidden=True)
    trial = live.begin()
    _see(page, hidden=False)
    page.shows("[data-part=in-flight]", trial)
    page.shows("ol.events li", f"{trial}started, round 1 of r0")
    numbers = page.browser.evaluate(
        "[...document.querySelectorAll('ol.events li')].map(each => +each.dataset.number)"
    )
    assert numbers == list(range(len(numbers), 0, -1)), "each event once, none left out"
    assert page.browser.complaints == []


def _see(page: Page, *, hidden: bool) -> None:
    page.browser.evaluate(
        f"Object.defineProperty(document, 'hidden', {{value: {json.dumps(hidden)},"
        " configurable: true}); document.dispatchEvent(new Event('visibilitychange'))"
    )


def test_what_is_wrong_with_a_run_is_said(page: Page, live: LiveRun) -> None:
    page.open(RUN)
    page.shows("#subtitle", "running")
    with live.paths.replica_journal("r0").open("ab") as journal:
        journal.write(b"garbage\n")
    page.shows("#problems", "not a record")
    page.open("#/runs/none")
    page.shows("[data-part=alerts]", "there is no run 'none'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_axe_finds_nothing_and_nothing_sticks_out(
    changed: tuple[Page, FakePrimaries], live: LiveRun, axe: str, width: int, scheme: str
) -> None:
    page, primaries = changed
    primaries.other = "another run computes here"
    _submit(page)
    with live.paths.replica_journal("r1").open("ab") as journal:
        journal.write(b"garbage\n")
    family = _family(live)
    live.sample()
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
        page.browser.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
        page.browser.evaluate(f"{axe}; 0")
        found = page.browser.evaluate(
            "axe.run(document).then(result => ({passes: result.passes.map(rule => rule.id),"
            " violations: result.violations.map(rule =>"
            " [rule.id, rule.impact, rule.nodes.map(node => node.target.join(' '))])}))"
        )
        assert found["violations"] == [], json.dumps(found["violations"], indent=1)
        assert {"color-contrast", "document-title", "region"} <= set(found["passes"])
        assert page.browser.evaluate("document.documentElement.scrollWidth") == width


def _submit(page: Page) -> None:
    request = urllib.request.Request(  # noqa: S310 -- loopback
        f"{page.url}/api/v1/runs",
        data=b'{"nodes": 1, "hours": 1}',
        headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        assert answer.status == 202


def _fill(page: Page, values: dict[str, str]) -> None:
    for name, value in values.items():
        page.browser.evaluate(
            f"document.querySelector('#submit form').elements[{json.dumps(name)}].value"
            f" = {json.dumps(value)}"
        )


def _click(page: Page, selector: str) -> None:
    page.browser.evaluate(f"document.querySelector({json.dumps(selector)}).click()")


def _use_token(page: Page) -> None:
    until(lambda: not page.browser.evaluate("document.getElementById('token').hidden"), str)
    page.browser.evaluate(f"document.getElementById('token-text').value = {json.dumps(TOKEN)}")
    _click(page, "#token button")


def test_runs_are_submitted_and_cancelled_with_a_token_that_the_tab_keeps(
    changed: tuple[Page, FakePrimaries],
) -> None:
    page, primaries = changed
    primaries.other = "another run computes here"
    page.open()
    page.shows("#queue", "There are no submissions")
    _click(page, "#submit summary")
    page.shows("#submit", "batch_size")
    batch_size = "settings.training.batch_size"
    _fill(page, {"name": "nightly", batch_size: "32", "settings.training.optimizer": "adam"})
    _click(page, "#submit form button")
    page.shows("#queue [data-part=outcome]", "a token is needed")
    assert page.api("queue") == {"queue": []}
    _use_token(page)
    _click(page, "#submit form button")
    page.shows("#queue [data-part=outcome]", "Submission 000001 is in the queue")
    page.shows("#queue table", "another run computes here")
    submission = page.api("queue/000001")["submission"]
    assert (submission["name"], submission["settings"]) == (
        "nightly", {"training": {"batch_size": 32, "optimizer": "adam"}}
    )  # fmt: skip
    _click(page, "#queue button[data-path]")
    page.shows("#queue table", "cancelled")
    assert page.browser.evaluate("localStorage.length") == 0
    _fill(page, {batch_size: "0", "name": ""})
    _click(page, "#submit form button")
    page.shows("#queue [data-part=outcome]", "this cannot run")
    page.shows(f"[name='{batch_size}'] + .error", "greater than or equal to 1")
    assert page.browser.evaluate("document.activeElement.name") == batch_size
    _fill(page, {batch_size: ""})
    page.browser.call("Input.insertText", text="e")
    _click(page, "#submit form button")
    page.shows(f"[name='{batch_size}'] + .error", "should be a whole number")


def test_a_run_is_stopped_and_one_whose_primary_died_is_resumed(
    changed: tuple[Page, FakePrimaries], live: LiveRun
) -> None:
    page, primaries = changed
    page.open(RUN)
    page.shows("[data-part=changes] summary", "Stop this run")
    _click(page, "[data-part=changes] button")
    _use_token(page)
    assert not live.paths.stop_request.exists()
    _click(page, "[data-part=changes] button")
    until(live.paths.stop_request.exists, str)
    live.primary.write(records.StopRequested(reason="asked to"))
    page.shows("#subtitle", "stopping")
    assert page.count("[data-part=changes] button") == 0
    lost = Plan(replicas=1, trials=1, hpo_trials=0, ended=False)
    write_run(live.paths.root.parent / "lost", lost)
    page.open("#/runs/lost")
    page.shows("[data-part=changes]", "Resume this run")
    _click(page, "[data-part=changes] button[data-path$=resume]")
    until(lambda: primaries.commands == [("resume", "lost")], lambda: primaries.commands)
