"""The tuner, spoken to by NNI's own dispatcher: it serialises, numbers trials and resumes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import nni
import pytest
from nni.runtime import msg_dispatcher

from aiperf_hpc.errors import ConfigError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.morphism.search.nni_tuner import SETTINGS, AIPerfTuner
from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.run.records import TrialEnded

MODEL = {"stem": "cifar", "base_width": 2, "blocks": [1, 1, 1, 1]}
INITIAL = resnet50((8, 8, 1), 10, stem="cifar", base_width=2, blocks=(1, 1, 1, 1))


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "search.jsonl"


class Manager:
    """What NNI's manager says to a tuner, and what it hears."""

    def __init__(self, journal: Path, *, space: object = None, resume: bool = False) -> None:
        self.tuner = tuner_for(journal)
        # A process has one dispatcher, which counts in its module.
        msg_dispatcher._next_parameter_id = 0
        # A name that NNI's own tests use: nothing is connected.
        self._dispatcher: Any = msg_dispatcher.MsgDispatcher("ws://_unittest_", self.tuner)
        self.sent: list[tuple[str, Any]] = []
        self._dispatcher.send = lambda command, data: self.sent.append((command.name, data))
        if resume:
            self._dispatcher.load_checkpoint()
        self._dispatcher.handle_initialize({} if space is None else space)

    def request(self, trials: int) -> list[dict[str, Any]]:
        before = len(self.sent)
        self._dispatcher.handle_request_trial_jobs(trials)
        return [nni.load(data) for name, data in self.sent[before:] if name == "NewTrialJob"]

    def report(self, number: int | None, value: object) -> None:
        self._dispatcher.handle_report_metric_data(
            {
                "parameter_id": number,
                "trial_job_id": "job",
                "type": "FINAL",
                "sequence": 0,
                "value": nni.dump(value),
            }
        )

    def end(self, number: int, event: str = "SUCCEEDED") -> None:
        self._dispatcher.handle_trial_end(
            {
                "trial_job_id": "job",
                "event": event,
                "hyper_params": json.dumps({"parameter_id": number}),
            }
        )

    def bring_back(self, trials: list[dict[str, Any]]) -> None:
        self._dispatcher.handle_add_customized_trial([json.dumps(trial) for trial in trials])

    def bring_exported(self, entries: list[dict[str, Any]]) -> None:
        self._dispatcher.handle_import_data(entries)


def tuner_for(path: Path, **more: Any) -> AIPerfTuner:  # noqa: ANN401
    return AIPerfTuner(
        **{
            "journal": str(path),
            "input_shape": [8, 8, 1],
            "classes": 10,
            "model": MODEL,
            "search": {"acquisition_evaluations": 8},
            **more,
        }
    )


def results(journal: Path) -> dict[str, float | None]:
    """Return what the journal says at last of every trial that ended."""
    events = (json.loads(line)["event"] for line in journal.read_text().splitlines())
    summaries = {e["trial"]: e for e in events if e["type"] == "trial_summary"}
    return {name: e["objective"] for name, e in summaries.items() if e["ended"]}


def reasons(journal: Path) -> Iterator[str]:
    for record in JournalReader(journal).read():
        if isinstance(record.event, TrialEnded):
            yield record.event.reason


def test_trials_are_given_graphs_that_survive_nni(journal: Path) -> None:
    manager = Manager(journal)
    first, second = manager.request(2)
    assert [trial["parameter_id"] for trial in (first, second)] == [0, 1]
    assert Graph.from_json(first["parameters"]["graph"]) == INITIAL
    assert first["parameters"]["parent"] is None
    given = second["parameters"]
    assert given["parent"] == first["parameters"]["trial"] == "nni0-0"
    assert Graph.from_json(given["graph"]).hash == given["hash"] != INITIAL.hash


@pytest.mark.parametrize(
    ("value", "accuracy"),
    [(0.5, 0.5), (1, 1.0), ({"default": 0.25, "loss": 3.0}, 0.25)],
)
def test_a_number_is_a_result(journal: Path, value: object, accuracy: float) -> None:
    manager = Manager(journal)
    manager.request(1)
    manager.report(0, value)
    assert results(journal) == {"nni0-0": accuracy}


@pytest.mark.parametrize(
    "value", [float("nan"), float("-inf"), "0.5", None, [0.5], {"loss": 3.0}, {"default": "?"}]
)
def test_anything_else_is_a_failure_that_says_what_was_reported(
    journal: Path, value: object
) -> None:
    manager = Manager(journal)
    manager.request(1)
    manager.report(0, value)
    assert results(journal) == {"nni0-0": None}
    assert list(reasons(journal)) == [f"it reported {value!r}, which is not a finite number"]
    assert manager.request(1)[0]["parameters"]["parent"] == "nni0-0"


def test_the_order_of_results_and_ends_means_nothing(tmp_path: Path) -> None:
    """NNI mistakes one process for another: here, trial 0's end is said to be trial 1's.

    Trial 0 reaches something, trial 1 fails.
    """
    told: list[Callable[[Manager], None]] = [
        lambda manager: manager.report(0, 0.5),
        lambda manager: manager.end(1, "SUCCEEDED"),
        lambda manager: manager.end(0, "FAILED"),
    ]
    for number, order in enumerate(permutations(told)):
        journal = tmp_path / f"{number}.jsonl"
        manager = Manager(journal)
        manager.request(2)
        for tell in order:
            tell(manager)
        assert results(journal) == {"nni0-0": 0.5, "nni0-1": None}


def test_a_search_space_holds_settings_of_the_search(journal: Path) -> None:
    depth = INITIAL.depth
    manager = Manager(journal, space={"max_depth": depth, "method": "greedy"})
    assert all(
        Graph.from_json(trial["parameters"]["graph"]).depth <= depth for trial in manager.request(8)
    )


def test_a_space_that_is_exhausted_is_no_more_trials_until_it_is_widened(journal: Path) -> None:
    manager = Manager(journal, space={"max_parameters": INITIAL.parameter_count})
    assert len(manager.request(2)) == 1
    assert manager.sent[-1][0] == "NoMoreTrialJobs"
    assert "search.max_parameters" in journal.read_text()
    manager.tuner.update_search_space({})
    assert len(manager.request(2)) == 2


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"max_deph": 3}, r"the search space: unknown key 'search.max_deph'; did you mean"),
        ({"max_depth": 0}, r"search.max_depth: .*the range is >= 1"),
        (
            {"queue_depth": 3},
            r"search.queue_depth has no effect under NNI; known: \['acquisition_evaluations'",
        ),
        ({"depth": {"_type": "choice", "_value": [1]}}, "unknown key 'search.depth'"),
        ("max_depth", "must hold settings of the search"),
    ],
)
def test_a_search_space_that_is_none_is_one_clear_error(
    journal: Path, space: object, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Manager(journal, space=space)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": {"width": 3}}, "the tuner's arguments: unknown key 'model.width'"),
        ({"search": {"method": "best"}}, "the tuner's arguments: search.method"),
        ({"journal": "search.jsonl"}, "'search.jsonl' is not an absolute path"),
    ],
)
def test_arguments_that_are_wrong_are_one_clear_error(
    journal: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        tuner_for(journal, **arguments)


def test_the_settings_are_those_that_are_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "nni.md").read_text()
    assert [name for name in sorted(SETTINGS) if f"`{name}`" not in page] == []


def test_a_resumed_experiment_goes_on_with_its_trials(journal: Path) -> None:
    manager = Manager(journal)
    done, running = manager.request(2)
    manager.report(0, 0.5)
    manager.tuner._on_exit()
    again = Manager(journal, resume=True)
    # NNI's own record has the result of the one under the parameters of the other.
    again.bring_exported(
        [{"parameter": running["parameters"], "value": "0.5", "trialJobId": "job"}]
    )
    again.bring_back([running])
    assert results(journal) == {"nni0-0": 0.5}
    (new,) = again.request(1)
    assert (new["parameter_id"], new["parameters"]["trial"]) == (2, "nni1-2")
    assert new["parameters"]["parent"] == done["parameters"]["trial"]
    again.report(1, 0.75)
    assert results(journal) == {"nni0-0": 0.5, "nni0-1": 0.75}


def test_a_new_experiment_with_an_old_journal_learns_from_it(journal: Path) -> None:
    old = Manager(journal)
    old.request(2)
    old.report(0, 0.5)
    old.tuner._on_exit()
    new = Manager(journal)
    assert results(journal) == {"nni0-0": 0.5, "nni0-1": None}
    assert list(reasons(journal)) == ["its experiment ended before it did"]
    assert new.request(1)[0]["parameters"]["parent"] == "nni0-0"


def test_results_of_others_are_not_taken(journal: Path) -> None:
    manager = Manager(journal)
    manager.request(1)
    manager.bring_exported([{"parameter": {"trial": "other"}, "value": 0.9}])
    manager.bring_exported([{"parameter": {"lr": 0.1}, "value": 0.9}])
    assert results(journal) == {}
