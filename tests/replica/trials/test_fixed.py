"""Training of a fixed network: no search, no hyperparameter optimization."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.support.run_writer import RunWriter, trial_started
from tests.support.trial_loop import LATER, Bench

from aiperf_hpc.config import SearchConfig
from aiperf_hpc.run import records
from aiperf_hpc.run.paths import FIRST, Incarnation
from aiperf_hpc.trial import RoundPhase, TrialState


def fixed(folder: Path, trials: int | None = None, **settings: Any) -> Bench:  # noqa: ANN401
    return Bench(folder, search={"method": "fixed", "max_trainings": trials}, **settings)


def test_the_initial_network_is_trained_repeatedly_from_different_weights(tmp_path: Path) -> None:
    bench = fixed(tmp_path)
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


def test_a_replica_ends_after_the_requested_number_of_trials(tmp_path: Path) -> None:
    """A later attempt trains only those that are left."""
    bench = fixed(tmp_path, 2)
    assert bench.run(5) == records.TRAININGS_DONE
    ended = bench.events(records.TrialEnded)
    assert [e.state for e in ended] == [TrialState.COMPLETED] * 2
    again = fixed(tmp_path, 3, attempt=LATER)
    assert again.run(5) == records.TRAININGS_DONE
    assert [started.round for started in again.events(records.TrialStarted)] == [1, 2, 3]
    done = fixed(tmp_path, 3, attempt=Incarnation(0, 2))
    assert done.run(5) == records.TRAININGS_DONE
    assert len(done.events(records.TrialStarted)) == 3


def test_a_trial_without_a_recorded_end_is_repeated(tmp_path: Path) -> None:
    """The first attempt trained the second trial while the first one's weights were stored."""
    lost = RunWriter(tmp_path)
    for number in (1, 2):
        started = trial_started(f"r0-t{number}", phase=RoundPhase.FIXED)
        lost.life(FIRST, 10.0 * number, started.model_copy(update={"round": number}))
    again = fixed(tmp_path, 3, attempt=LATER)
    assert again.run(5) == records.TRAININGS_DONE
    rounds = {s.trial: s.round for s in again.events(records.TrialStarted)}
    ended = [rounds[e.trial] for e in again.events(records.TrialEnded)]
    assert ended == [1, 2, 3]


def test_the_number_of_trials_is_limited_for_fixed_networks_only() -> None:
    why = "max_trainings 2 requires method fixed; .* searches for"
    with pytest.raises(ValidationError, match=why):
        SearchConfig.model_validate({"method": "guided", "max_trainings": 2})


def test_a_replica_with_a_fixed_network_has_no_search_workers() -> None:
    assert SearchConfig(workers=4).processes == 4
    assert SearchConfig(workers=4, method="fixed").processes == 0
