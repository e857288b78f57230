"""Commands and networks arrive as rank 0 sends them."""

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
from aiperf_hpc.replica.parallel.collectives import Collective
from aiperf_hpc.replica.parallel.protocol import (
    BuildRequest,
    Command,
    Warmup,
    announce,
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


def received(send: Callable[[Collective], None], receive: Callable[[Collective], T]) -> T:
    """Send as rank 0; return what rank 1 receives."""
    table = Table(2)
    with ThreadPoolExecutor(1) as pool:
        receiving = pool.submit(receive, Threads(table, 1, 2))
        send(Threads(table, 0, 2))
        return receiving.result()


@pytest.mark.parametrize(
    ("command", "numbers"), [(Command.TRAIN, [3, 64, 2**52 + 1]), (Command.TRAIN_STEP, [0.1])]
)
def test_a_command_arrives_with_its_arguments(command: Command, numbers: list[float]) -> None:
    found = received(lambda collective: announce(collective, command, *numbers), next_command)
    assert found == (command, [*numbers, 0, 0][:3])


@pytest.mark.parametrize("state", STATES)
def test_a_request_to_build_arrives_with_all_arrays(state: OptimizerState | None) -> None:
    graph = two_stems()
    weights = initial_weights(graph, np.random.default_rng(0))
    used = Hyperparameters(batch_size=8, learning_rate=0.1, max_gradient_norm=0.5)
    request = BuildRequest(NetworkState(graph, weights, used, state), Warmup.TAKEN)

    def receive(collective: Collective) -> tuple[int, BuildRequest]:
        command, (number, head_bytes, _) = next_command(collective)
        assert command is Command.BUILD
        return int(number), BuildRequest.received(collective, int(head_bytes))

    number, found = received(lambda collective: request.send(collective, 5), receive)
    assert (number, found.warmup) == (5, Warmup.TAKEN)
    network = found.network
    assert (network.graph.hash, network.hyperparameters) == (graph.hash, used)
    assert (network.optimizer_state is None) == (state is None)
    for sent, arrived in ((weights, network.weights), (state or {}, network.optimizer_state or {})):
        assert list(arrived) == list(sent)
        for name, array in sent.items():
            assert arrived[name].shape == array.shape
            np.testing.assert_array_equal(arrived[name], array)
