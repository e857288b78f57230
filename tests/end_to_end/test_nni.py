"""A real experiment of NNI 3.0 on this machine, two trials at once, which train on real digits."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.morphism.lineage import Lineage
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.run.records import AnyEvent, SearchEnded, TrialEnded, TrialSummary

SESSION = Path(__file__).with_name("nni_session.py")
PATIENT = SESSION.with_name("nni_patience.cjs")
TRIALS = 6
MARK = "AIPERF_TEST_NNI"


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return all that carry the mark of this test, whoever started them."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(folder):
                found.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue  # Not this user's, or gone: not this test's.
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run the experiment; yield what it left."""
    folder = tmp_path_factory.mktemp("nni")
    try:
        _run_experiment(folder)
        yield folder
    finally:
        for process in processes_of(folder):
            process.kill()


def _run_experiment(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "HOME": str(folder),  # NNI keeps a list of experiments there.
        MARK: str(folder),
        "OMP_NUM_THREADS": "1",
        "NODE_OPTIONS": f"--require {PATIENT}",
    }
    command = [sys.executable, str(SESSION), str(folder), str(TRIALS), str(port)]
    with (folder / "session.log").open("w") as log:
        subprocess.run(
            command, env=environment, stdout=log, stderr=log, check=True, timeout=PATIENCE_SECONDS
        )


@pytest.fixture(scope="module")
def events(folder: Path) -> list[AnyEvent]:
    reader = JournalReader(folder / "search.jsonl")
    events = [record.event for record in reader.read()]
    assert (reader.problems, reader.torn) == ([], False)
    return events


@pytest.fixture(scope="module")
def recorded(events: list[AnyEvent]) -> dict[str, TrialSummary]:
    """What our journal says at last of every trial."""
    return {event.trial: event for event in events if isinstance(event, TrialSummary)}


@pytest.fixture(scope="module")
def written(folder: Path) -> dict[str, dict[str, Any]]:
    """What every trial's process wrote of itself."""
    found = (json.loads(path.read_text()) for path in folder.glob("nni0-*.json"))
    return {result["trial"]: result for result in found}


def test_records_of_nni(
    recorded: dict[str, TrialSummary], written: dict[str, dict[str, Any]]
) -> None:
    assert len(written) == TRIALS - 1  # One process died before it had parameters.
    assert {name: (recorded[name].graph, recorded[name].objective) for name in written} == {
        name: (result["hash"], result["accuracy"]) for name, result in written.items()
    }
    # The others died before that, or NNI asked for them ahead and never ran them.
    assert all(recorded[name].objective is None for name in recorded.keys() - written.keys())
    assert len(recorded) >= TRIALS
    accuracies = [result["accuracy"] for result in written.values() if result["accuracy"]]
    assert len(accuracies) == TRIALS - 3
    assert max(accuracies) > 0.2  # Ten classes: it was trained, on top of what parents learnt.


def test_failures_have_reasons(events: list[AnyEvent], written: dict[str, dict[str, Any]]) -> None:
    failed = {name for name, result in written.items() if result["accuracy"] is None}
    reasons = {e.trial: e.reason for e in events if isinstance(e, TrialEnded)}
    assert {name for name, reason in reasons.items() if "it reported nan" in reason} < failed
    assert failed <= reasons.keys()


def test_two_trials_ran_at_once(events: list[AnyEvent]) -> None:
    ended = [event.ended for event in events if isinstance(event, TrialSummary)]
    assert ended[:2] == [False, False]


def test_the_journal_alone_makes_every_graph_again(recorded: dict[str, TrialSummary]) -> None:
    initial = resnet50((8, 8, 1), 10, stem="cifar", base_width=4, blocks=(1, 1, 1, 1))
    lineage = Lineage(recorded.get, initial)
    assert [lineage.graph(name).hash for name in recorded] == [t.graph for t in recorded.values()]


def test_the_search_left_no_process(folder: Path, events: list[AnyEvent]) -> None:
    assert (folder / "status").read_text() == "DONE"
    assert events[-1] == SearchEnded(reason="the experiment was stopped")
    assert processes_of(folder) == []
