"""What only the tensorflow engine has to do."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import numpy as np
import pytest
from tests.support.engine_steps import (
    assert_equal,
    built,
    given,
    hyperparameters,
    labelled,
)
from tests.support.networks import (
    residual,
    sequential,
    trained_weights,
    two_stems,
)

from aiperf_hpc.graph import Dense, Flatten, Graph, Input, Softmax
from aiperf_hpc.objective import CLASSIFICATION
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import NetworkState, RankEngine
from aiperf_hpc.replica.engines.tensorflow import engine as tensorflow_engine
from aiperf_hpc.replica.engines.tensorflow import steps
from aiperf_hpc.replica.engines.tensorflow.engine import TensorFlowEngine, TensorFlowNetwork
from aiperf_hpc.replica.engines.tensorflow.layers import OPERATIONS
from aiperf_hpc.replica.engines.tensorflow.steps import MOST_KEPT
from aiperf_hpc.replica.parallel.collectives import aligned
from aiperf_hpc.replica.tensorflow_import import tf
from aiperf_hpc.system.accelerators import Found
from aiperf_hpc.system.description import Accelerator


@pytest.fixture(scope="module")
def engine() -> RankEngine:
    return load_engine("tensorflow", 2)


def test_the_weights_of_a_network_do_not_outlive_it(engine: RankEngine) -> None:
    """What was traced does, for the next network of its graph."""
    network = _used(engine, two_stems())
    variables = [ref(variable) for variable in network._variables.values()]
    network.close()
    gc.collect()
    assert [found() for found in variables if found() is not None] == []


def test_traces_are_freed_when_other_graphs_are_built() -> None:
    """Traced functions are tens of megabytes; a replica makes hundreds of networks."""
    engine = load_engine("tensorflow", 2)
    before = {id(graph) for graph in _traced_graphs()}
    _used(engine, two_stems()).close()
    traced = [ref(graph) for graph in _traced_graphs() if id(graph) not in before]
    assert len(traced) == 4
    for channels in range(MOST_KEPT):
        _used(engine, _perceptron(3 + channels)).close()
    assert [found() for found in traced if found() is not None] == []


def _used(engine: RankEngine, graph: Graph) -> TensorFlowNetwork:
    """Return a network of which every step but the checksum was executed."""
    network = built(engine, graph, 10)
    assert isinstance(network, TensorFlowNetwork)
    batch = labelled(graph, 8)
    network.train_step(batch, 0.05)
    network.apply(given(network, batch, 1.0), 0.05)
    network.evaluate_step(batch)
    return network


def _traced_graphs() -> list[Any]:
    return [thing for thing in gc.get_objects() if type(thing).__name__ == "FuncGraph"]


def _perceptron(hidden: int) -> Graph:
    return sequential(
        image=Input((4, 4, 2)),
        flat=Flatten(),
        hidden=Dense(hidden),
        logits=Dense(3),
        probabilities=Softmax(),
    )


def test_batch_sizes_and_learning_rates_share_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another weight decay is: it is a number in what was traced."""
    engine, graph = load_engine("tensorflow", 2), _perceptron(5)
    traces = _counted_traces(monkeypatch)
    counts = []
    for changed in ({}, {"batch_size": 4, "learning_rate": 0.1}, {"weight_decay": 0.1}):
        network = built(engine, graph, 3, **changed)
        network.warm(4)
        network.train_step(labelled(graph, 6), 0.1)
        network.evaluate_step(labelled(graph, 2))
        counts.append(len(traces))
    assert counts == [2, 2, 4]  # A training and an evaluation step.


def _counted_traces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows with each execution of a softmax in Python, which is once a trace."""
    traces: list[str] = []
    computed = OPERATIONS[Softmax]

    def counting(*given: Any) -> Any:  # noqa: ANN401 -- as the operation has it
        traces.append(given[1].name)
        return computed(*given)

    monkeypatch.setitem(OPERATIONS, Softmax, counting)
    return traces


@pytest.mark.parametrize("optimizer", ["sgd", "lamb"])
def test_networks_share_only_traces(optimizer: str) -> None:
    """Two are trained in turns, each with its own weights, as if there were no other."""
    graph = residual()
    used = hyperparameters(optimizer=optimizer, weight_decay=0.01)
    weights = [trained_weights(graph, np.random.default_rng(seed)) for seed in (1, 2)]
    shared = load_engine("tensorflow", 2)
    together = [shared.build(NetworkState(graph, given, used)) for given in weights]
    alone = [
        load_engine("tensorflow", 2).build(NetworkState(graph, given, used)) for given in weights
    ]
    for step in range(3):
        for networks in (together, alone):
            for number, network in enumerate(networks):
                network.train_step(labelled(graph, 4 + 4 * number, step), 0.05)
    for one, other in zip(together, alone, strict=True):
        assert one.drain_training() == other.drain_training()
        expected = other.weights()
        for name, array in one.weights().items():
            np.testing.assert_array_equal(array, expected[name])


def test_slow_calls_give_the_same_steps_and_a_warning(
    engine: RankEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A version of TensorFlow may lack ``call_preflattened``, which bypasses slow binding."""
    fast = built(engine, residual(), 1)
    monkeypatch.setattr(steps, "_flat_call", lambda _: None)
    steps._warn_of_slow_calls.cache_clear()
    slow = built(load_engine("tensorflow", 2), residual(), 1)
    for network in (fast, slow):
        network.train_step(labelled(residual(), 8), 0.05)
        network.evaluate_step(labelled(residual(), 8))
    assert_equal(slow.weights(), fast.weights())
    assert slow.drain_evaluation() == fast.drain_evaluation()
    assert capsys.readouterr().err.count("has no AtomicFunction.call_preflattened") == 1


def test_gradients_are_taken_from_aligned_memory_as_from_any_other(engine: RankEngine) -> None:
    """What ranks receive into is used where it is; any other array is copied."""
    graph = residual()
    one, other = (built(engine, graph, 17) for _ in range(2))
    (size,) = one.buckets
    gradients = np.random.default_rng(18).standard_normal(size).astype(np.float32)
    received, anywhere = aligned(size), np.zeros(size + 1, np.float32)[1:]
    received[:] = anywhere[:] = gradients
    one.apply([received], 0.05)
    other.apply([anywhere], 0.05)
    for name, array in other.weights().items():
        np.testing.assert_array_equal(one.weights()[name], array)
    np.testing.assert_array_equal(received, gradients)


@pytest.mark.parametrize(
    ("visible", "sizes", "limit"),
    [(0, (80,), None), (1, (80,), 80), (1, (80, 40), 40), (1, (80, None), None), (1, (), None)],
)
def test_memory_of_accelerators(
    visible: int, sizes: tuple[int | None, ...], limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the host's: batches that fit there would end in errors here."""
    there = tuple(
        Accelerator(vendor="NVIDIA", model="A", index=index, memory_bytes=size)
        for index, size in enumerate(sizes)
    )
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [kind] * visible)
    monkeypatch.setattr(tensorflow_engine, "find_accelerators", lambda: Found(there, {}))
    assert TensorFlowEngine(CLASSIFICATION).memory_bytes == limit
