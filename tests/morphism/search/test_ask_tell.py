from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.networks import noted_children, residual, two_stems

from aiperf_hpc.config import SearchConfig
from aiperf_hpc.errors import UsageError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.morphisms import from_data, grow
from aiperf_hpc.morphism.search import greedy
from aiperf_hpc.morphism.search.ask_tell import AskTellSearch, UnknownTrialError
from aiperf_hpc.morphism.search.base import SearchSpaceExhaustedError
from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.run.records import Proposed, SearchFailed, TrialSummary

GUIDED = SearchConfig(acquisition_evaluations=12, max_morphisms=3)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "search.jsonl"


def begin(
    journal: Path, initial: Graph | None = None, search: SearchConfig = GUIDED
) -> AskTellSearch:
    return AskTellSearch(journal, initial or residual(), search, front_end="life")


def said(journal: Path) -> dict[str, tuple[str, float | None, bool]]:
    """Return graph, objective value and whether it ended of every trial, by the JSON alone."""
    events = [json.loads(line)["event"] for line in journal.read_text().splitlines()]
    return {
        e["trial"]: (e["graph"], e["objective"], e["ended"])
        for e in events
        if e["type"] == "trial_summary"
    }


def failures(journal: Path) -> list[str]:
    events = (record.event for record in JournalReader(journal).read())
    return [event.reason for event in events if isinstance(event, SearchFailed)]


def test_the_initial_graph_comes_first_and_its_children_until_something_is_told(
    journal: Path,
) -> None:
    search = begin(journal)
    first, *others = (search.ask(search.name(number)) for number in range(6))
    assert (first.graph, first.parent, first.morphisms) == (residual().hash, None, ())
    assert search.graph(first.trial) == residual()
    for other in others:
        assert other.parent == first.trial
        graph = search.graph(other.trial)
        assert graph == grow(residual(), map(from_data, other.morphisms))
        assert graph.hash == other.graph
    assert len({candidate.graph for candidate in (first, *others)}) == 6
    assert search.pending == [f"life0-{number}" for number in range(6)]
    reader = JournalReader(journal)
    events = [record.event for record in reader.read()]
    assert reader.problems == []
    predictions = [event.prediction for event in events if isinstance(event, Proposed)]
    assert predictions == [{}] * 5  # Nothing is known, so nothing was predicted.


@pytest.mark.parametrize("method", ["guided", "greedy"])
def test_with_four_trials_at_once_every_result_is_recorded_for_its_graph(
    journal: Path, method: str
) -> None:
    search = begin(journal, search=GUIDED.model_copy(update={"method": method}))
    running: list[TrialSummary] = []
    expected: dict[str, tuple[str, float | None, bool]] = {}
    for number in range(24):
        running.append(search.ask(search.name(number)))
        if len(running) == 4:
            done = running.pop(number % 4)  # Not in the order of asking.
            search.tell(done.trial, 0.5 + number / 100)
            expected[done.trial] = (done.graph, 0.5 + number / 100, True)
    expected |= {candidate.trial: (candidate.graph, None, False) for candidate in running}
    assert said(journal) == expected
    assert len({graph for graph, _, _ in expected.values()}) == 24
    assert search.pending == [c.trial for c in sorted(running, key=lambda c: int(c.trial[6:]))]


@pytest.mark.parametrize(("method", "judged"), [("greedy", 1), ("guided", 8)])
def test_a_child_is_grown_once(
    journal: Path, monkeypatch: pytest.MonkeyPatch, method: str, judged: int
) -> None:
    """Where it is judged: not again for who asks, for choices while it is trained, or after."""
    search = begin(journal, search=SearchConfig(method=method, acquisition_evaluations=judged))
    search.tell(search.ask("life0-0").trial, 0.5)
    greedy._child.cache_clear()
    made = noted_children(monkeypatch)
    for number in range(1, 9):
        asked = search.ask(f"life0-{number}")
        if number % 2:
            search.tell(asked.trial, 0.5 + number / 100)
    assert len(made) == 8 * judged


def test_what_is_told_later_counts(journal: Path) -> None:
    search = begin(journal)
    trial = search.ask("life0-0").trial
    search.tell_failed(trial, "it ended")
    assert said(journal)[trial][1:] == (None, True)
    search.tell(trial, 0.25)
    assert said(journal)[trial][1:] == (0.25, True)


def test_a_failed_graph_is_not_proposed_again_and_nothing_grows_from_it(journal: Path) -> None:
    search = begin(journal)
    first, child = search.ask("life0-0"), search.ask("life0-1")
    search.tell(first.trial, 0.5)
    search.tell_failed(child.trial, "it diverged")
    for number in range(2, 10):
        candidate = search.ask(f"life0-{number}")
        assert candidate.graph != child.graph
        assert candidate.parent == first.trial
    assert '"reason":"it diverged"' in journal.read_text()


def test_what_was_never_asked_for_cannot_be_told(journal: Path) -> None:
    search = begin(journal)
    with pytest.raises(UnknownTrialError, match="trial other was never requested"):
        search.tell("other", 0.5)
    with pytest.raises(UnknownTrialError):
        search.tell_failed("other", "it failed")
    assert said(journal) == {}


def test_a_trial_is_asked_for_once(journal: Path) -> None:
    search = begin(journal)
    search.ask("life0-0")
    with pytest.raises(ValueError, match="requested already"):
        search.ask("life0-0")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_no_result(journal: Path, value: float) -> None:
    search = begin(journal)
    search.ask("life0-0")
    with pytest.raises(ValueError, match="has failed"):
        search.tell("life0-0", value)
    assert said(journal)["life0-0"][1:] == (None, False)


def test_a_later_life_goes_on_from_the_journal(journal: Path) -> None:
    first = begin(journal)
    trials = [first.ask(first.name(number)).trial for number in range(3)]
    for trial, value in zip(trials, (0.3, 0.6), strict=False):
        first.tell(trial, value)
    first.close("test")
    second = begin(journal)
    assert (second.session, second.pending) == ("life1", ["life0-2"])
    known = {graph for graph, _, _ in said(journal).values()}
    candidate = second.ask(second.name(0))
    assert candidate.trial == "life1-0"
    assert candidate.parent in trials[:2]
    assert candidate.graph not in known
    second.tell("life0-2", 0.9)
    assert said(journal)["life0-2"][1:] == (0.9, True)


def test_a_later_life_asks_for_the_initial_graph_if_it_was_never_trained(journal: Path) -> None:
    first = begin(journal)
    first.tell_failed(first.ask("life0-0").trial, "the machine died")
    assert first.ask("life0-1").parent == "life0-0"  # Once a life.
    first.close("test")
    second = begin(journal)
    assert second.ask("life1-0").parent is None
    assert second.ask("life1-1").parent is not None


def test_a_journal_has_one_initial_graph(journal: Path) -> None:
    search = begin(journal)
    search.ask("life0-0")
    search.close("test")
    with pytest.raises(UsageError, match=f"{residual().hash}, not {two_stems().hash}"):
        begin(journal, two_stems())


def test_a_damaged_line_is_said_and_the_others_count(journal: Path) -> None:
    search = begin(journal)
    search.tell(search.ask("life0-0").trial, 0.5)
    search.ask("life0-1")
    search.close("test")
    lines = journal.read_text().splitlines()
    lines[2] = "damage"
    journal.write_text("\n".join(lines) + "\n")
    assert begin(journal).pending == ["life0-0", "life0-1"]
    assert failures(journal) == [
        f"{journal}, line 3: not a record: invalid JSON: expected value at line 1 column 1"
    ]


def test_an_exhausted_space_is_an_error_that_is_recorded_and_may_pass(journal: Path) -> None:
    narrow = GUIDED.model_copy(update={"max_parameters": residual().parameter_count})
    search = begin(journal, search=narrow)
    search.tell(search.ask("life0-0").trial, 0.5)
    with pytest.raises(SearchSpaceExhaustedError, match="search.max_parameters"):
        search.ask("life0-1")
    assert len(failures(journal)) == 1
    search.configure(GUIDED)
    assert search.ask("life0-1").parent == "life0-0"
