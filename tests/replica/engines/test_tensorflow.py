"""What only the tensorflow engine has to do."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.engine_steps import given, hyperparameters, labelled, relative_error, samples
from tests.support.networks import SMALL, THIN, random_chain, residual, trained_weights, two_stems

from aiperf_hpc.errors import EngineError, OutOfMemoryError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.grow import grow_with_weights
from aiperf_hpc.morphism.weights.checkpoint import Weights, initial_weights
from aiperf_hpc.objective import CLASSIFICATION
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import RankEngine, RankNetwork
from aiperf_hpc.replica.engines.tensorflow import engine as tensorflow_engine
from aiperf_hpc.replica.engines.tensorflow.engine import TensorFlowEngine, TensorFlowNetwork
from aiperf_hpc.replica.parallel.collectives.memory import aligned
from aiperf_hpc.replica.tensorflow_import import tf
from aiperf_hpc.system.accelerators import Found
from aiperf_hpc.system.description import Accelerator

CHAINS = 300


@pytest.fixture(scope="module")
def engine() -> RankEngine:
    return load_engine("tensorflow", 2)


@pytest.mark.parametrize("part", range(4))
def test_random_chains_of_morphisms_keep_the_function(engine: RankEngine, part: int) -> None:
    """300 chains of depth 1 to 8: relative error of the logits at most 1e-5 in fp32."""
    worst = 0.0
    for number in range(part, CHAINS, 4):
        rng = np.random.default_rng(number)
        # Every tenth is all of ResNet-50, thin; building it takes a second.
        make = THIN[number // 10 % 2] if number % 10 == 0 else SMALL[number % 2]
        graph = make()
        weights = trained_weights(graph, rng)
        depth = 1 + number % 8
        child, inherited = grow_with_weights(graph, weights, random_chain(graph, depth, rng), rng)
        inputs = samples(graph, 4, rng)
        error = relative_error(
            _inference(child, inherited, inputs), _inference(graph, weights, inputs)
        )
        worst = max(worst, error)
        assert error <= 1e-5, (number, error)
    assert worst > 0.0  # Both sides were really computed.


def _inference(graph: Graph, weights: Weights, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """The real engine's layers, without tracing its training step."""
    from aiperf_hpc.replica.engines.tensorflow import engine

    variables = {name: tf.Variable(array) for name, array in weights.items()}
    found: NDArray[np.float32] = engine.execute(graph, variables, {"image": inputs}, "fp32").numpy()
    return found


def test_nothing_of_a_network_outlives_it(engine: RankEngine) -> None:
    """Traced functions are tens of megabytes; a replica makes hundreds of networks."""
    graph = two_stems()
    weights = initial_weights(graph, np.random.default_rng(10))
    network = engine.build(graph, weights, hyperparameters())
    batch = labelled(graph, 8)
    network.train_step(batch, 0.05)
    network.apply(given(network, batch, 1.0), 0.05)
    network.evaluate_step(batch)
    network.outputs(batch.inputs)
    variables, traced = _held_by(network)
    assert len(variables) == len(graph.parameters) + len(graph.statistics)
    assert len(traced) == 5
    network.close()
    gc.collect()
    assert [found() for found in (*variables, *traced) if found() is not None] == []


def _held_by(network: RankNetwork) -> tuple[list[ref[Any]], list[ref[Any]]]:
    """Weak references to a network's variables and to what was traced with them, and no other."""
    assert isinstance(network, TensorFlowNetwork)
    variables = network._variables.values()
    handles = {id(variable.handle) for variable in variables}
    traced = [thing for thing in gc.get_objects() if type(thing).__name__ == "FuncGraph"]
    own = (g for g in traced if not handles.isdisjoint(map(id, g.external_captures)))
    return [ref(variable) for variable in variables], [ref(g) for g in own]


def test_gradients_are_taken_from_aligned_memory_as_from_any_other(engine: RankEngine) -> None:
    """What ranks receive into is used where it is; any other array is copied."""
    graph = residual()
    weights = trained_weights(graph, np.random.default_rng(17))
    one, other = (engine.build(graph, weights, hyperparameters()) for _ in range(2))
    (size,) = one.buckets
    gradients = np.random.default_rng(18).standard_normal(size).astype(np.float32)
    received, anywhere = aligned(size), np.zeros(size + 1, np.float32)[1:]
    received[:] = anywhere[:] = gradients
    one.apply([received], 0.05)
    other.apply([anywhere], 0.05)
    for name, array in other.weights().items():
        np.testing.assert_array_equal(one.weights()[name], array)
    np.testing.assert_array_equal(received, gradients)
    for network in (one, other):
        network.close()


def test_a_step_that_does_not_fit_in_memory_is_said_to_be_so(
    engine: RankEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = two_stems()
    network = engine.build(
        graph, initial_weights(graph, np.random.default_rng(8)), hyperparameters()
    )

    def exhausted(*_: object) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    monkeypatch.setattr(network, "_train", exhausted)
    with pytest.raises(OutOfMemoryError, match="OOM when allocating"):
        network.train_step(labelled(graph, 8), 0.05)
    network.close()


def test_fp16_is_refused(engine: RankEngine) -> None:
    graph = two_stems()
    weights = initial_weights(graph, np.random.default_rng(0))
    with pytest.raises(EngineError, match="fp16.*does not scale the loss; use bf16"):
        engine.build(graph, weights, hyperparameters(precision="fp16"))


@pytest.mark.parametrize(
    ("visible", "sizes", "limit"),
    [(0, (80,), None), (1, (80,), 80), (1, (80, 40), 40), (1, (80, None), None), (1, (), None)],
)
def test_the_memory_of_an_accelerator_is_what_its_vendor_tells(
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
