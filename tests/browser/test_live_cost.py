"""What the live page costs. ``-s`` prints the figures."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tests.browser.chromium import Chromium
from tests.browser.live_page import ADDRESS, RUN, Page
from tests.browser.live_run import LiveRun
from tests.support.run_factory import Plan, write_run

from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.service.runs import FolderOfRuns
from aiperf_hpc.service.server import ServerThread

pytestmark = pytest.mark.browser

RUNS = 100
NODES, TRIALS = 4096, 10_000
UPDATES = 1000
"""Updates of a quarter of an hour, at one a second."""
SECONDS = 20
# Measured on 2026-11-28 on 2 cores of an AMD EPYC, which other tests kept busy.
MOST_PAINT_MILLISECONDS = 150.0
"""The fastest of ten first paints took 60 to 68 ms."""
MOST_CORE = 0.1
"""About twice the 4.2 to 5.3 % that it took, because a busier machine needs more."""
MOST_GROWTH_BYTES = 100
"""Maximum bytes that an update may leave behind; it left 5 to 13."""


@pytest.fixture
def replayed(page: Page, live: LiveRun) -> Iterator[Callable[[int, int, int], None]]:
    """Opens a run that is replayed with so many nodes and trials, and prepares its updates."""
    live.family()
    live.sample(0)
    live.sample(1)
    script = Path(__file__).with_name("replay.js").read_text("utf-8")
    added = list[str]()

    def start(nodes: int, trials: int, updates: int) -> None:
        text = f"{{ const NODES = {nodes}, TRIALS = {trials};\n{script}}}"
        done = page.browser.call("Page.addScriptToEvaluateOnNewDocument", source=text)
        added.append(done["identifier"])
        page.open(RUN)
        page.evaluate(f"prepare('api/v1/runs/{ADDRESS}/status', {updates})")
        page.shows("[data-part=events]", "the run started")
        page.evaluate("updates(30, 1000)")
        page.shows("[data-part=tree]", "trials")

    yield start
    for identifier in added:
        page.browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=identifier)


def test_the_first_paint_beside_a_hundred_runs(browser: Chromium, tmp_path: Path) -> None:
    first = write_run(tmp_path / "run-0", Plan(replicas=1, trials=1, hpo_trials=0))
    write_report(RunView.read(first))
    for number in range(1, RUNS):
        shutil.copytree(first.root, tmp_path / f"run-{number}")
    painted = []
    with ServerThread(FolderOfRuns(tmp_path)) as server:
        page = Page(browser, server.url)
        for _ in range(10):
            page.open(width=1280)
            page.holds(f"document.querySelectorAll('table.runs tbody tr').length === {RUNS}")
            painted.append(page.evaluate("performance.getEntriesByType('paint')[0].startTime"))
    print(f"\nfirst paint beside {RUNS} runs: {sorted(map(round, painted))} ms")  # noqa: T201 -- with -s
    assert min(painted) <= MOST_PAINT_MILLISECONDS


def test_memory_does_not_grow_with_updates(
    page: Page, replayed: Callable[[int, int, int], None]
) -> None:
    replayed(0, 0, 200)
    page.evaluate(f"updates({UPDATES}, 1000)")
    before, nodes = _in_use(page.browser)
    page.evaluate(f"updates({UPDATES}, 1000)")
    after, nodes_after = _in_use(page.browser)
    print(f"\nheap {before:,} bytes, {after - before:+,} after {UPDATES:,} more updates")  # noqa: T201 -- with -s
    assert nodes_after <= nodes + 100
    assert after - before < UPDATES * MOST_GROWTH_BYTES


def _in_use(browser: Chromium) -> tuple[int, int]:
    """Return the bytes of the page's objects and the number of its nodes that are in use."""
    for _ in range(3):
        browser.call("HeapProfiler.collectGarbage")
    size = browser.call("Runtime.getHeapUsage")["usedSize"]
    return int(size), int(browser.call("Memory.getDOMCounters")["nodes"])


def test_processor_time_of_a_large_run(
    page: Page, replayed: Callable[[int, int, int], None]
) -> None:
    replayed(NODES, TRIALS, SECONDS)
    page.shows("[data-part=machines]", f"{NODES:,} hosts")
    browser = next(each for each in psutil.Process().children() if "chrom" in each.name())
    processes = [browser, *browser.children(recursive=True)]
    began, before = time.monotonic(), _cpu(processes)
    for number in range(SECONDS):
        page.evaluate("update()")
        time.sleep(max(0.0, began + number + 1 - time.monotonic()))
    fraction = (_cpu(processes) - before) / (time.monotonic() - began)
    print(f"\n{NODES:,} nodes, {TRIALS:,} trials: {fraction:.1%} of a core")  # noqa: T201 -- with -s
    page.browser.complaints.clear()  # The service has no telemetry of the added nodes.
    assert fraction <= MOST_CORE


def _cpu(processes: list[psutil.Process]) -> float:
    """Return the processor time of Chromium's processes in seconds."""
    return sum(sum(each.cpu_times()[:2]) for each in processes)
