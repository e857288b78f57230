"""Tests of training the initial network as it is: no search, no choice of hyperparameters."""

from __future__ import annotations

from pathlib import Path

from tests.replica.trials.test_loop import Bench

from aiperf_hpc.config import SearchConfig
from aiperf_hpc.run import records
from aiperf_hpc.trial import RoundPhase


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


def test_a_replica_that_trains_a_fixed_network_has_no_search_processes() -> None:
    assert SearchConfig(workers=4).processes == 4
    assert SearchConfig(workers=4, method="fixed").processes == 0
