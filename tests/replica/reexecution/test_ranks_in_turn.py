"""One process trains a batch in the parts that several ranks had of it."""

from __future__ import annotations

import numpy as np
import pytest
from tests.replica.parallel.team import GRAPH, Numbered, Quadratic, Team, build, build_grown

from aiperf_hpc.morphism.operators.morphisms import Deeper, grow_with_weights
from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.replica.reexecution import RanksInTurn, parts_of_batches


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_it_trains_as_the_ranks_did_together(size: int) -> None:
    """50 samples by 8, so that the last batch leaves most of five ranks without a sample."""
    with Team(size) as team:
        network = build(team)
        for batch in team.dataset.train(1, 8, 0):
            network.train_step(batch, 0.1)
        loss = network.drain_training()
        network.close()
    weights = initial_weights(GRAPH, np.random.default_rng(0))
    alone = Quadratic(GRAPH, weights)
    in_turn = RanksInTurn(alone, GRAPH, weights, size)
    for parts in parts_of_batches(Numbered(), 1, 8, 0, size):
        assert len(parts) == size
        in_turn.train_step(parts, 0.1)
    assert in_turn.drain_training() == pytest.approx(loss, rel=1e-6)
    np.testing.assert_allclose(alone.w, team.engines[0].networks[0].w, rtol=1e-6)


def test_it_calibrates_as_the_ranks_did() -> None:
    with Team(3) as team:
        network = build_grown(team)
        first, *_ = team.dataset.train(1, 8, 0)
        network.calibrate(first)
        network.close()
    rng = np.random.default_rng(0)
    chain = [Deeper("relu", 3), Deeper("relu_deep1_relu", 1)]
    graph, weights = grow_with_weights(GRAPH, initial_weights(GRAPH, rng), chain, rng)
    alone = Quadratic(graph, weights)
    RanksInTurn(alone, graph, weights, 3).calibrate(next(parts_of_batches(Numbered(), 1, 8, 0, 3)))
    for found, wanted in zip(alone.assigned, team.engines[0].networks[0].assigned, strict=True):
        assert found.keys() == wanted.keys()
        for name in found:
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-6)


def test_each_rank_has_statistics_of_its_own_and_their_mean_is_evaluated() -> None:
    """They are the number of its steps here, which all of them make in turn."""
    weights = initial_weights(GRAPH, np.random.default_rng(0))
    alone = Quadratic(GRAPH, weights)
    in_turn = RanksInTurn(alone, GRAPH, weights, 2)
    for parts in parts_of_batches(Numbered(), 1, 25, 0, 2):
        in_turn.train_step(parts, 0.1)
    in_turn.drain_training()
    assert alone.steps == 4
    np.testing.assert_array_equal(alone.set_to, [3.5, 3.5])  # After the third and the fourth.
