from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.forgery.conftest import simulated
from tests.forgery.forger import ForgedRun, of
from tests.forgery.omissions import complete

from aiperf_hpc.integrity.release import FILES
from aiperf_hpc.morphism.search.base import Choice, View
from aiperf_hpc.morphism.search.greedy import GreedySearcher
from aiperf_hpc.morphism.search.guided import GuidedSearcher
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.consistency import files, search_choices
from aiperf_hpc.rules.consistency.evidence import Evidence
from aiperf_hpc.rules.consistency.search_choices import choices
from aiperf_hpc.rules.rule import Checked, Findings, Note
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import FileProblem
from aiperf_hpc.verification.audit import evidence_of


def guided(root: Path) -> RunPaths:
    """Simulate replicas with two search workers each."""
    return simulated(root, "search.method=guided", "search.workers=2", "training.patience=1")


@pytest.fixture(scope="module", params=[simulated, guided, complete])
def honest(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    make: Callable[[Path], RunPaths] = request.param
    return make(tmp_path_factory.mktemp("honest") / make.__name__).root


@pytest.fixture
def run(tmp_path: Path) -> ForgedRun:
    return ForgedRun(simulated(tmp_path / "run"))


def found(
    run: ForgedRun, rule: Callable[[Evidence], Findings] = choices
) -> tuple[int, list[str], list[str]]:
    """Return the number of checked items, the notes and the failures of a rule."""
    run.save()
    findings = list(rule(evidence_of(RunView(run.paths))))
    (checked,) = (each for each in findings if isinstance(each, Checked))
    notes = [str(each) for each in findings if isinstance(each, Note)]
    others = [str(e) for e in findings if isinstance(e, str) and not isinstance(e, Note)]
    return checked, notes, others


def test_all_proposals_of_honest_runs_are_chosen_again(
    honest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_choices, "SAMPLE", 1000)
    checked, notes, failures = found(ForgedRun(RunPaths(honest)))
    assert checked > 3
    assert (notes, failures) == ([], [])


def test_the_sample_is_bounded(run: ForgedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_choices, "SAMPLE", 4)
    checked, notes, failures = found(run)
    assert (checked, failures) == (4, [])
    assert notes[0].startswith("4 of ")


def test_a_lost_search_digest_is_noted(run: ForgedRun) -> None:
    run.paths.digest.unlink()
    checked, notes, failures = found(run)
    assert failures == []
    assert "the search digest that it had read was lost, damaged or made again" in notes[0]
    assert checked < 3


def test_a_search_digest_that_was_made_again_is_noted(run: ForgedRun) -> None:
    for line in run.journal(run.paths.digest):
        line["utc"] += 3600.0
    _, notes, failures = found(run)
    assert failures == []
    assert "made again" in notes[0]


def test_a_search_digest_whose_replacement_was_recorded_is_noted(run: ForgedRun) -> None:
    problem = FileProblem(file="primary/digest.jsonl", problem="it is missing", remedy="rebuilt")
    last = run.primary[-1]
    run.primary.insert(-1, {**last, "event": problem.model_dump(mode="json")})
    checked, notes, failures = found(run)
    assert (checked, failures) == (0, [])
    assert "made again" in notes[0]


def test_results_with_other_packages_are_noted(run: ForgedRun) -> None:
    for proposal in of(run.search(), "proposed"):
        proposal["event"]["seed"] += 1
    assert found(run)[2] != []
    for replica in ("r0", "r1", "r2"):
        started = of(run.trainer(replica), "replica_started")[0]["event"]
        started["machine"]["versions"]["numpy"] = "1.0"
    _, notes, failures = found(run)
    assert failures == []
    assert "it differs, and was chosen with numpy 1.0" in notes[0]


def test_parents_whose_weights_were_missing_must_have_been_lost(run: ForgedRun) -> None:
    first = of(run.search(), "proposed")[0]["event"]
    first["seen"]["missing"] = ["r0-t1"]  # It was deleted later.
    assert "no record explains why weights were missing" in found(run)[1][0]


def test_a_proposal_without_what_was_read_is_no_excuse(run: ForgedRun) -> None:
    of(run.search(), "proposed")[0]["event"]["seen"] = None
    assert found(run)[2] == ["r0-w0-1 does not record what the searcher had read"]


def test_a_seed_that_no_generator_takes_is_no_record(run: ForgedRun) -> None:
    of(run.search(), "proposed")[0]["event"]["seed"] = -1
    run.save()
    history = evidence_of(RunView(run.paths)).history
    problems = [str(each) for each in history.problems]
    assert len([each for each in problems if "seed" in each]) == 1


@pytest.mark.parametrize("error", [ValueError, ZeroDivisionError, KeyError, np.linalg.LinAlgError])
def test_errors_of_searchers_are_noted_with_their_cause(
    run: ForgedRun, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def choose(*_: object) -> Choice:
        raise error("cause")

    monkeypatch.setattr(GreedySearcher, "choose", choose)
    checked, notes, failures = found(run)
    assert (checked, failures) == (0, [])
    assert f"its searcher fails with {error.__name__}: " in notes[0]
    assert "cause" in notes[0]


def test_a_version_that_the_program_of_the_run_never_had_is_found(run: ForgedRun) -> None:
    of(run.search(), "proposed")[0]["event"]["seen"]["version"] = 99
    assert found(run)[2] == [
        "r0-w0-1: it states version 99 of its searcher, which has version 1",
    ]


def test_searchers_of_other_programs_are_noted(run: ForgedRun) -> None:
    for replica in ("r0", "r1", "r2"):
        started = of(run.trainer(replica), "replica_started")[0]["event"]
        started["machine"]["versions"][FILES] = "0" * 64
        for proposal in of(run.search(replica), "proposed"):
            proposal["event"]["seen"]["version"] = 99
    checked, notes, failures = found(run)
    assert (checked, failures) == (0, [])
    assert "the searcher had version 99, not 1" in notes[0]


WRONG_JOURNALS = {
    "/": "which is not a journal of its replica",
    "../x": "which is not a journal of its replica",
    "0.0/x.jsonl": "which is not a journal of its replica",
    "7.0/journal.jsonl": "which is not a journal of its replica",
    "0.0/search-7.jsonl": "which has 0",
    "0.0/journal.jsonl": "which has ",
}
"""Journals that a proposal cannot have read that far, with the reasons."""


@pytest.mark.parametrize("name", WRONG_JOURNALS)
def test_journals_that_cannot_have_been_read_are_found(run: ForgedRun, name: str) -> None:
    of(run.search(), "proposed")[0]["event"]["seen"]["journal_lines"][name] = 10**6
    (failure,) = found(run)[2]
    assert failure.startswith("r0-w0-1: it states 1,000,000 lines of ")
    assert WRONG_JOURNALS[name] in failure


@pytest.mark.parametrize("why", ["lost journal", "power failure"])
def test_lines_that_may_have_been_lost_are_noted(
    run: ForgedRun, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    of(run.search(), "proposed")[0]["event"]["seen"]["journal_lines"]["0.0/journal.jsonl"] = 10**6
    if why == "lost journal":
        monkeypatch.setattr(Evidence, "lost_paths", {run.paths.replica("r0") / "0.0/journal.jsonl"})
    else:  # No record is later than the proposal.
        monkeypatch.setattr(Evidence, "tolerance", lambda *_: 1e6)
    _, notes, failures = found(run)
    assert failures == []
    assert "the journals that it had read are missing or shorter" in notes[0]


def test_the_limit_of_graphs_holds_before_a_searcher_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ForgedRun(guided(tmp_path / "run"))
    events = [each["event"] for each in of(run.search(), "proposed")]
    first = events[0]["seen"]
    for event in events:  # Fabricated: each searcher learned from more than it chose from.
        event["learned"], event["seen"] = event["seen"], first
    learned: list[View] = []
    monkeypatch.setattr(GuidedSearcher, "learn", lambda _, view: learned.append(view))
    monkeypatch.setattr(search_choices, "MOST_GRAPHS", 1)
    _, notes, _ = found(run)
    assert "the sample's searchers learned from over 1 graphs" in notes[0]
    assert len(learned) <= 2  # Of the one proposal that the limit always allows.


def test_damaged_weights_are_noted(run: ForgedRun) -> None:
    path = next(run.paths.trained("r0", "").parent.iterdir())
    path.write_bytes(bytes(path.stat().st_size))
    _, notes, failures = found(run, files.shapes)
    assert (len(notes), failures) == (1, [])
