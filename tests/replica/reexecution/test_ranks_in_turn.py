"""One process trains on the shards of several ranks in turn."""

from __future__ import annotations

import numpy as np
import pytest
from tests.replica.parallel.team import (
    Quadratic,
    Team,
    build,
    grown_state,
    initial_state,
    numbered,
    train,
)

from aiperf_hpc.replica.engines.base import NetworkState
from aiperf_hpc.replica.reexecution import RanksInTurn, parts_of_batches


def in_turn(state: NetworkState, ranks: int) -> tuple[Quadratic, RanksInTurn]:
    """Return a network, and its training on the shards of these ranks."""
    network = Quadratic(state.graph, state.weights)
    return network, RanksInTurn(network, state.graph, state.weights, ranks)


@pytest.mark.parametrize("size", [1, 5])
def test_training_equals_that_of_the_ranks_together(size: int) -> None:
    """50 samples by 8: most of five ranks have no sample of the last batch."""
    with Team(size) as team:
        network = build(team)
        train(team, network)
        loss = network.drain_training()
        network.close()
    alone, ranks = in_turn(initial_state(), size)
    for parts in parts_of_batches(numbered(), 1, 8, 0, size):
        assert len(parts) == size
        ranks.train_step(parts, 0.1)
    assert ranks.drain_training() == pytest.approx(loss, rel=1e-6)
    np.testing.assert_allclose(alone.w, team.engines[0].networks[0].w, rtol=1e-6)


def test_calibration_equals_that_of_the_ranks_together() -> None:
    with Team(3) as team:
        network = team.engine.build(grown_state())
        network.calibrate(next(team.dataset.train(1, 8, 0)))
        network.close()
    alone, ranks = in_turn(grown_state(), 3)
    ranks.calibrate(next(parts_of_batches(numbered(), 1, 8, 0, 3)))
    for found, wanted in zip(alone.assigned, team.engines[0].networks[0].assigned, strict=True):
        assert found.keys() == wanted.keys()
        for name in found:
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-6)


def test_each_rank_has_its_own_statistics_and_their_mean_is_evaluated() -> None:
    """The network's statistics are its number of steps, which the ranks do in turn."""
    alone, ranks = in_turn(initial_state(), 2)
    for parts in parts_of_batches(numbered(), 1, 25, 0, 2):
        ranks.train_step(parts, 0.1)
    ranks.drain_training()
    assert alone.steps == 4
    np.testing.assert_array_equal(alone.set_to, [3.5, 3.5])  # After the third and the fourth.
