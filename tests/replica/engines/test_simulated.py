"""The simulated engine: the contract of engines as far as it computes anything, and its world."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from tests.support.clock import Clock
from tests.support.networks import two_stems

from aiperf_hpc.config import DatasetConfig, EngineConfig, SimulationConfig
from aiperf_hpc.errors import CheckpointError, EngineError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.objective import ACCURACY
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.replica.data import load_dataset
from aiperf_hpc.replica.data.base import Batch, labelled_images
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import EvaluationSums, Network, NetworkState
from aiperf_hpc.replica.engines.simulated import ceiling
from aiperf_hpc.trial import Hyperparameters

GRAPH = resnet50((8, 8, 3), 4, stem="cifar", base_width=1)
MODEL = SimulationConfig(operations_per_second=1e6, step_seconds=0.5, build_seconds=3.0)
USED = Hyperparameters(batch_size=128, learning_rate=0.1)
WEIGHTS = initial_weights(GRAPH, np.random.default_rng(0))


def batch(size: int) -> Batch:
    return labelled_images(np.zeros((size, 8, 8, 3), np.float32), np.zeros(size, np.int32))


def network(
    clock: Clock | None = None, model: SimulationConfig = MODEL, graph: Graph = GRAPH
) -> Network:
    weights = initial_weights(graph, np.random.default_rng(0))
    engine = load_engine(
        "simulated", 2, settings=EngineConfig(simulation=model), clock=clock or Clock()
    )
    return engine.build(NetworkState(graph, weights, USED))


def epochs(net: Network, number: int, samples: int = 10_000) -> list[EvaluationSums]:
    """Train and evaluate so many times."""
    done = []
    for _ in range(number):
        net.train_step(batch(10), 0.1)
        net.drain_training()
        net.evaluate_step(batch(samples))
        done.append(net.drain_evaluation())
    return done


def test_building_and_steps_take_the_time_of_the_model() -> None:
    clock = Clock()
    net = network(clock)
    net.train_step(batch(7), 0.1)
    assert net.drain_training() > 0.0
    assert net.drain_training() == 0.0
    net.evaluate_step(batch(5))
    operations = count(GRAPH)
    train, validate = 7 * operations.training / 1e6, 5 * operations.forward / 1e6
    assert clock.pauses == pytest.approx([3.0, 0.5 + train, 0.5 + validate])


def test_correct_samples_are_whole_and_sum_up_whatever_the_parts() -> None:
    whole, parts = network(), network()
    whole.train_step(batch(1), 0.1)
    parts.train_step(batch(1), 0.1)
    whole.evaluate_step(batch(1000))
    total = whole.drain_evaluation()
    found = []
    for size in (1, 332, 667):
        parts.evaluate_step(batch(size))
        found.append(parts.drain_evaluation())
    right = [part.sums(ACCURACY)["correct"] for part in found]
    assert all(r.is_integer() and r <= part.samples for r, part in zip(right, found, strict=True))
    assert sum(right) == total.sums(ACCURACY)["correct"]
    assert sum(part.samples for part in found) == total.samples == 1000
    assert sum(part.loss for part in found) == pytest.approx(total.loss)
    assert parts.drain_evaluation() == EvaluationSums()


def test_accuracy_saturates_at_the_ceiling_and_the_loss_falls_with_it() -> None:
    quiet = MODEL.model_copy(update={"noise": 0.0})
    course = epochs(network(model=quiet), 60)
    accuracies = [e.sums(ACCURACY)["correct"] / e.samples for e in course]
    assert accuracies == sorted(accuracies)
    steps = np.diff(accuracies)
    assert steps[0] > 5 * steps[20] > 0.0
    assert accuracies[-1] == pytest.approx(ceiling(quiet, GRAPH, USED), abs=1e-3)
    losses = [e.mean_loss for e in course]
    assert losses == sorted(losses, reverse=True)


def test_the_same_seed_gives_the_same_world_and_another_another() -> None:
    assert epochs(network(), 5) == epochs(network(), 5)
    assert epochs(network(), 5) != epochs(network(model=MODEL.model_copy(update={"seed": 1})), 5)


def test_a_world_has_something_to_learn() -> None:
    graphs = [resnet50((8, 8, 3), 4, stem="cifar", base_width=width) for width in (1, 4, 16)]
    worth = [ceiling(MODEL, graph, USED) for graph in graphs]
    assert worth[0] < worth[-1]
    batches = [USED.model_copy(update={"batch_size": size}) for size in (16, 64, 128, 512, 4096)]
    reached = [ceiling(MODEL, GRAPH, used) for used in batches]
    assert len(set(reached)) == len(reached)
    assert reached.index(max(reached)) not in (0, len(reached) - 1)


def test_weights_pass_through_and_those_of_another_graph_are_refused() -> None:
    engine = load_engine("simulated", 2, settings=EngineConfig(simulation=MODEL), clock=Clock())
    net = engine.build(NetworkState(GRAPH, WEIGHTS, USED))
    epochs(net, 2)
    assert all(np.array_equal(net.weights()[name], WEIGHTS[name]) for name in WEIGHTS)
    with pytest.raises(CheckpointError):
        engine.build(NetworkState(GRAPH, {}, USED))


def test_training_goes_on_from_its_state_as_if_uninterrupted() -> None:
    engine = load_engine("simulated", 2, settings=EngineConfig(simulation=MODEL), clock=Clock())
    wanted = epochs(engine.build(NetworkState(GRAPH, WEIGHTS, USED)), 6)
    first = engine.build(NetworkState(GRAPH, WEIGHTS, USED))
    begun = epochs(first, 3)
    state = first.optimizer_state()
    assert {n: a.shape for n, a in state.items()} == {
        f"momentum:{name}": shape for name, shape in GRAPH.parameters.items()
    }
    second = engine.build(NetworkState(GRAPH, first.weights(), USED, state))
    assert begun + epochs(second, 3) == wanted


def test_a_network_without_classes_is_refused() -> None:
    graph = two_stems()
    cut = Graph(graph.nodes[:-1])
    assert graph.nodes[-1].layer.kind == "softmax"
    with pytest.raises(EngineError, match=f"'{cut.output.name}'.*softmax"):
        network(graph=cut)


def test_no_framework_is_imported() -> None:
    code = (
        "import sys; from aiperf_hpc.replica.engines import load_engine;"
        "load_engine('simulated', 1);"
        "sys.exit(any(name in sys.modules for name in ('tensorflow', 'keras', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_simulated_samples_have_their_shape_and_number_and_take_no_memory() -> None:
    config = DatasetConfig(
        name="simulated", image_size=224, classes=1000, train_samples=100, validation_samples=7
    )
    dataset = load_dataset(config, 1)
    batches = list(dataset.train(1, 48, 0))
    assert [b.size for b in batches] == [48, 48, 4]
    assert [b.size for b in dataset.validation(48)] == [7]
    assert batches[0].inputs["image"].shape == (48, 224, 224, 3)
    assert batches[0].inputs["image"].strides == (0, 0, 0, 0)
    assert dataset.info.classes == 1000
    smaller = config.model_copy(update={"image_size": 32})
    assert load_dataset(smaller, 1).info.sha256 != dataset.info.sha256
