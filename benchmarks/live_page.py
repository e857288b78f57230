"""What the live page costs a browser: first paint, updates a minute, and memory over time.

python -m benchmarks.live_page                    # 10 minutes; from the checkout, with Chromium
python -m benchmarks.live_page --minutes 60

A run of several replicas is written while a browser shows it, faster than on a machine: about two
epochs a second, and each second a trial that ends and another that starts. Garbage is
collected before the browser's memory is read, so that what is told is what the page keeps.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.browser.chromium import Chromium, chromium
from tests.browser.live_run import LiveRun
from tests.support.run_factory import Grown, initial_graph

from aiperf_hpc.service.runs import FolderOfRuns
from aiperf_hpc.service.server import ServerThread

REPLICAS = 4
EPOCH_SECONDS, EPOCHS = 0.5, 2
PAINTED = """
new Promise(resolve => {
  const look = () => document.querySelector(SELECTOR)
    ? resolve({
        paint: performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null,
        figures: performance.now(),
      })
    : requestAnimationFrame(look);
  look();
})
"""
COUNTED = """
window.changes = 0;
new MutationObserver(() => { window.changes += 1; })
  .observe(document.querySelector('[data-part=headline]'),
           {subtree: true, characterData: true, childList: true, attributes: true});
"""


def write(run: LiveRun) -> Iterator[None]:
    """Write the next epoch of a trial each time."""
    initial = Grown(initial_graph(run.workers[0].config))
    trials = {number: run.begin(number, initial) for number in range(REPLICAS)}
    first = dict(trials)
    for turn in itertools.count():
        number, round_ = turn % REPLICAS, turn // REPLICAS
        epoch = round_ % EPOCHS + 1
        run.epoch(trials[number], epoch, 100 + (37 * turn) % 200, number)
        if epoch == EPOCHS:
            run.finish(trials[number], number)
            grown = run.grow(number, initial, first[number], seed=turn)
            trials[number] = run.begin(number, grown)
            run.sample(number)
        run.beat()
        yield


def first_paint(browser: Chromium, address: str, selector: str) -> dict[str, float]:
    """Return milliseconds to the first paint, and to the first figures."""
    browser.open("about:blank", width=1280, scheme="light", policy=True)
    browser.open(address, width=1280, scheme="light", policy=True)
    told = browser.evaluate(PAINTED.replace("SELECTOR", json.dumps(selector)))
    return {name: round(value, 1) for name, value in told.items() if value is not None}


def memory(browser: Chromium) -> dict[str, float]:
    """Return what the page keeps: bytes of JavaScript's heap, nodes and listeners."""
    browser.call("HeapProfiler.collectGarbage")
    counters = browser.call("Memory.getDOMCounters")
    return {
        "heap_mib": round(browser.call("Runtime.getHeapUsage")["usedSize"] / 2**20, 3),
        "nodes": counters["nodes"],
        "listeners": counters["jsEventListeners"],
    }


def measure(browser: Chromium, url: str, run: LiveRun, minutes: float) -> None:
    """Print what is measured, a line of JSON each minute."""
    writing = write(run)
    next(writing)
    print(json.dumps({"list": first_paint(browser, f"{url}/", "table.runs")}), flush=True)
    shown = first_paint(browser, f"{url}/#/runs/live", "#score")
    print(json.dumps({"run": shown}), flush=True)
    browser.evaluate(COUNTED)
    began = time.monotonic()
    for minute in itertools.count(1):
        before, since = browser.evaluate("changes"), time.monotonic()
        while time.monotonic() < began + 60.0 * minute:
            next(writing)
            time.sleep(EPOCH_SECONDS)
        passed = time.monotonic() - since
        updates = (browser.evaluate("changes") - before) * 60.0 / passed
        trials = sum(worker.trials for worker in run.workers)
        line = {"minute": minute, "updates": round(updates, 1), "trials": trials}
        print(json.dumps({**line, **memory(browser)}), flush=True)
        if minute >= minutes:
            break
    print(json.dumps({"complaints": browser.complaints}), flush=True)


def main() -> None:
    """Measure, and print lines of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    arguments = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        parser.error("no chromium on this machine")
    with (
        tempfile.TemporaryDirectory() as folder,
        LiveRun(Path(folder) / "live", replicas=REPLICAS) as run,
        ServerThread(FolderOfRuns(Path(folder))) as server,
        chromium(program) as browser,
    ):
        measure(browser, server.url, run, arguments.minutes)


if __name__ == "__main__":
    main()
