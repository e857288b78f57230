"""Tests of training the initial network as it is: no search, no choice of hyperparameters."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.support.run_writer import RunWriter, trial_started
from tests.support.trial_loop import Bench

from aiperf_hpc.config import SearchConfig
from aiperf_hpc.run import records
from aiperf_hpc.run.paths import FIRST, Incarnation
from aiperf_hpc.trial import RoundPhase, TrialState

LATER = Incarnation(0, 1)


def test_the_initial_network_is_trained_again_and_again_from_other_weights(tmp_path: Path) -> None:
    bench = Bench(tmp_path, search={"method": "fixed"})
    bench.run(3)
    started = bench.events(records.TrialStarted)[:3]
    assert [s.phase for s in started] == [RoundPhase.FIXED] * 3
    assert [s.round for s in started] == [1, 2, 3]
    assert {s.graph for s in started} == {bench.initial.hash}
    assert all(s.parent is None and s.proposal is None and not s.morphisms for s in started)
    assert {s.epoch_limit for s in started} == {bench.config.training.max_epochs}
    assert {s.hyperparameters.batch_size for s in started} == {bench.config.training.batch_size}
    assert len({s.seed for s in started}) == 3
    first = [network.weights() for network in bench.engine.networks[:3]]
    kernel = next(name for name in first[0] if name.endswith("/kernel"))
    assert len({weights[kernel].tobytes() for weights in first}) == 3
    ended = bench.events(records.TrialEnded)
    assert all(e.predicted_accuracy is None for e in ended)


def test_a_replica_ends_when_it_has_trained_as_often_as_was_asked_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, search={"method": "fixed", "max_trainings": 2})
    assert bench.run(5) == records.TRAININGS_DONE
    ended = bench.events(records.TrialEnded)
    assert [e.state for e in ended] == [TrialState.COMPLETED] * 2
    again = Bench(tmp_path, life=LATER, search={"method": "fixed", "max_trainings": 2})
    assert again.run(5) == records.TRAININGS_DONE
    assert again.events(records.TrialStarted) == bench.events(records.TrialStarted)


def test_a_later_life_trains_what_is_left(tmp_path: Path) -> None:
    Bench(tmp_path, search={"method": "fixed", "max_trainings": 3}).run(2)
    again = Bench(tmp_path, life=LATER, search={"method": "fixed", "max_trainings": 3})
    assert again.run(5) == records.TRAININGS_DONE
    assert [s.round for s in again.events(records.TrialStarted)][-1] == 3


def test_a_training_whose_end_was_lost_is_done_again(tmp_path: Path) -> None:
    """The first life trained the second network while the first one's weights were stored."""
    lost = RunWriter(tmp_path)
    for number in (1, 2):
        started = trial_started(f"r0-t{number}", phase=RoundPhase.FIXED)
        lost.life(FIRST, 10.0 * number, started.model_copy(update={"round": number}))
    again = Bench(tmp_path, life=LATER, search={"method": "fixed", "max_trainings": 3})
    assert again.run(5) == records.TRAININGS_DONE
    rounds = {s.trial: s.round for s in again.events(records.TrialStarted)}
    ended = [rounds[e.trial] for e in again.events(records.TrialEnded)]
    assert ended == [1, 2, 3]


@pytest.mark.parametrize("method", ["guided", "greedy"])
def test_a_search_has_no_number_of_trainings(method: str) -> None:
    with pytest.raises(
        ValidationError, match="max_trainings 2 requires method fixed; .* searches for"
    ):
        SearchConfig.model_validate({"method": method, "max_trainings": 2})


def test_a_replica_that_trains_a_fixed_network_has_no_search_processes() -> None:
    assert SearchConfig(workers=4).processes == 4
    assert SearchConfig(workers=4, method="fixed").processes == 0
