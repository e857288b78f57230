"""What rank 0 says arrives as it was said."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pytest
from tests.replica.parallel.threads import Table, Threads
from tests.support.networks import two_stems

from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.replica.engines.base import NetworkState, OptimizerState
from aiperf_hpc.replica.parallel.collectives.base import Collective
from aiperf_hpc.replica.parallel.protocol import (
    Announce,
    BuildRequest,
    Command,
    Warmup,
    next_command,
)
from aiperf_hpc.trial import Hyperparameters

T = TypeVar("T")
STATES: list[OptimizerState | None] = [
    None,
    {},
    {
        "momentum:a/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
        "step": np.array(7, np.float32),
        "momentum:a/bias": np.array([0.25], np.float32),
    },
]


def heard(say: Callable[[Collective], None], hear: Callable[[Collective], T]) -> T:
    """Let rank 0 say something, and return what rank 1 hears."""
    table = Table(2)
    with ThreadPoolExecutor(1) as pool:
        hearing = pool.submit(hear, Threads(table, 1, 2))
        say(Threads(table, 0, 2))
        return hearing.result()


def test_a_command_arrives_with_its_numbers() -> None:
    assert heard(
        lambda collective: Announce(collective)(Command.TRAIN, 3, 64, 2**52 + 1), next_command
    ) == (Command.TRAIN, [3, 64, 2**52 + 1])
    assert heard(
        lambda collective: Announce(collective)(Command.TRAIN_STEP, 0.1), next_command
    ) == (Command.TRAIN_STEP, [0.1, 0, 0])


@pytest.mark.parametrize("state", STATES)
def test_a_network_to_build_arrives_with_all_its_arrays(state: OptimizerState | None) -> None:
    graph = two_stems()
    weights = initial_weights(graph, np.random.default_rng(0))
    used = Hyperparameters(batch_size=8, learning_rate=0.1, max_gradient_norm=0.5)
    request = BuildRequest(NetworkState(graph, weights, used, state), Warmup.TAKEN)

    def hear(collective: Collective) -> tuple[int, BuildRequest]:
        command, (number, head_bytes, _) = next_command(collective)
        assert command is Command.BUILD
        return int(number), BuildRequest.received(collective, int(head_bytes))

    number, received = heard(lambda collective: request.send(collective, 5), hear)
    assert number == 5
    assert received.warmup is Warmup.TAKEN
    network, found = received.network, received.network.optimizer_state
    assert (network.graph.hash, network.hyperparameters) == (graph.hash, used)
    assert network.weights.keys() == weights.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(network.weights[name], array)
    if state is None:
        assert found is None
    else:
        assert found is not None
        assert list(found) == list(state)
        for name, array in state.items():
            assert found[name].shape == array.shape
            np.testing.assert_array_equal(found[name], array)
