"""A browser, the checks of axe, and reports to look at."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.chromium import Chromium, chromium
from tests.browser.live_page import NAME, TOKEN, Page
from tests.browser.live_run import LiveRun
from tests.fetch_cifar10 import NotAvailableError, pack
from tests.service.fake_primaries import FakePrimaries
from tests.support.cache import cached, unavailable
from tests.support.clock import Clock
from tests.support.result_logs import unpacked
from tests.support.run_factory import Plan, write_manifest, write_run

from aiperf_hpc.analysis.analysis import analyze
from aiperf_hpc.analysis.card import make_card
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.page.render import write_card, write_page
from aiperf_hpc.analysis.ranking import ExcludedRun, Ranking
from aiperf_hpc.analysis.ranking import write_page as write_ranking
from aiperf_hpc.analysis.readers.sources import read_sources
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_catalog import RunDetails
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run import records
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.service.endpoint import Endpoint
from aiperf_hpc.service.run_queue import RunQueue
from aiperf_hpc.service.runs import FolderOfRuns
from aiperf_hpc.service.server import ServerThread
from aiperf_hpc.trial import StepPart

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
AXE = "axe-core@4.14.1"
AXE_SHA256 = "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745"
TRIALS = 28
"""Trials of each replica in the long report."""


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core, fetched once and kept in the cache."""
    return cached(f"{AXE}.js", _fetch_axe).read_text("utf-8")


def _fetch_axe(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            tarball = pack(Path(folder), AXE, AXE_SHA256)
        except NotAvailableError as error:
            unavailable(f"axe is not available: {error}")
        with tarfile.open(tarball) as archive:
            script = archive.extractfile("package/axe.min.js")
            assert script is not None
            path.write_bytes(script.read())


@pytest.fixture(scope="session")
def browser() -> Iterator[Chromium]:
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        unavailable("no chromium on this machine; `make browser` installs it")
    with chromium(program) as started:
        yield started


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveRun]:
    with LiveRun(tmp_path / "runs" / NAME.replace("/", "")) as run:
        yield run


@pytest.fixture
def page(browser: Chromium, live: LiveRun) -> Iterator[Page]:
    with ServerThread(FolderOfRuns(live.paths.root.parent)) as server:
        yield Page(browser, server.url)
    assert browser.complaints == []


@pytest.fixture
def changed(
    browser: Chromium, live: LiveRun, tmp_path: Path
) -> Iterator[tuple[Page, FakePrimaries]]:
    """The page of a service that changes what is in its folder; nothing is really started."""
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text(TOKEN)
    folder, primaries = live.paths.root.parent, FakePrimaries()
    queue, endpoint = RunQueue(folder, primaries), Endpoint(token_file=tokens)
    with queue.working(), ServerThread(FolderOfRuns(folder), endpoint, queue=queue) as server:
        yield Page(browser, server.url), primaries


def _long(folder: Path) -> Path:
    """Write a report with everything in it: many trials, steps of ranks, runs of other sizes."""
    other = write_run(folder / "one", Plan(replicas=1, trials=3, hpo_trials=0, run_id="one"))
    write_report(RunView(other))
    plan = Plan(replicas=2, trials=TRIALS, hpo_trials=TRIALS - 4, failed=0, run_id="two")
    paths = write_run(folder / "two", plan)
    with JournalWriter(paths.replica_journal("r0").with_name("steps.jsonl"), clock=Clock()) as own:
        own.append(records.StepTimes(trial="r0-t001", collective="mpi", ranks=4, steps=10,
                                     seconds=dict.fromkeys(StepPart, 0.5)))  # fmt: skip
    return write_report(RunView(paths), [other])


def _models(folder: Path) -> Path:
    """Write a report of a run that trained one network again and again, to a target."""
    config = {
        "search": {"method": "fixed"},
        "training": {"batch_size": 64, "precision": "fp32", "target": 0.5},
    }
    plan = Plan(replicas=2, trials=3, hpo_trials=0, run_id="models", config=config)
    return write_report(RunView(write_run(folder, plan)))


def _damaged(folder: Path) -> Path:
    """Write a report of a run that goes on, with failures and problems."""
    paths = write_run(folder, Plan(replicas=1, ended=False))
    with paths.replica_journal("r0").open("ab") as journal:
        journal.write(b"garbage\n")
    return write_report(RunView(paths))


def _empty(folder: Path) -> Path:
    paths = RunPaths(folder)
    write_manifest(paths, Plan())
    return write_report(RunView(paths))


def _analysed(folder: Path) -> tuple[Path, Path]:
    """Write the page of an analysis of public logs and runs, and the card of the runs' machine."""
    for name in ("corigpu_n64_tf1.15.0", "abci_512xV100_tensorflow_closed"):
        unpacked(folder / "logs", "0.7", name)
    for seed in (1, 2):
        plan = Plan(replicas=1, trials=3, hpo_trials=0, run_id=f"run-{seed}", seed=seed)
        write_run(folder / "runs" / str(seed), plan)
    analysis = analyze(read_sources([folder]), Options())
    return write_page(analysis, folder), write_card(make_card(analysis), folder)


def _ranking(folder: Path) -> Path:
    """Write the page of a ranking with runs that are valid, that are not, and that are left out."""
    paths = write_run(folder / "run", Plan(replicas=1, trials=3, hpo_trials=0))
    view = RunView.read(paths)
    invalid = RunDetails.of(view, "run")
    named = {"system": "Example-1", "submitter": "A centre"}
    valid = tuple(
        invalid.model_copy(
            update={**named, "violated_rules": (), "violations": (), "run_id": f"run-{number}"}
        )
        for number in range(3)
    )
    excluded = (ExcludedRun(name="lasts", reasons=("it has not ended",)),)
    page = folder / "ranking.html"
    write_ranking(
        Ranking(valid=valid, invalid=(invalid,), excluded=excluded, foreign=("notes",)), page
    )
    return page


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages by what they show."""
    folder = tmp_path_factory.mktemp("reports")
    analysis, card = _analysed(folder / "analysis")
    return {
        "long": _long(folder),
        "models": _models(folder / "models"),
        "damaged": _damaged(folder / "damaged"),
        "empty": _empty(folder / "empty"),
        "analysis": analysis,
        "card": card,
        "ranking": _ranking(folder / "ranking"),
    }
