"""The tensorflow engine computes what the graph says, keeps functions, and names its errors."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import tensorflow as tf
import torch
from numpy.typing import NDArray
from tests.morphism.networks import SMALL, THIN, random_chain, residual, trained_weights, two_stems
from tests.morphism.test_preservation import moments as torch_moments
from tests.morphism.torch_network import logits as torch_logits
from tests.morphism.torch_network import to_tensors

from aiperf_hpc.errors import (
    CheckpointError,
    EngineError,
    MorphismError,
    NonFiniteLossError,
    OutOfMemoryError,
)
from aiperf_hpc.graph import (
    BatchNorm,
    Conv2D,
    Dense,
    GlobalAveragePool2D,
    Graph,
    Input,
    Layer,
    Node,
    ReLU,
    Shape,
    Softmax,
)
from aiperf_hpc.morphism.channels import channel_groups
from aiperf_hpc.morphism.morphs import (
    Deeper,
    KernelSize,
    Morphism,
    Skip,
    Wider,
    grow_with_weights,
)
from aiperf_hpc.morphism.weights import Weights, initial_weights
from aiperf_hpc.replica.collectives.memory import aligned
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import Network, RankEngine, RankNetwork
from aiperf_hpc.trial import Hyperparameters

CHAINS = 300


@pytest.fixture(scope="module")
def engine() -> RankEngine:
    return load_engine("tensorflow", 2)


def hyperparameters(**changed: object) -> Hyperparameters:
    values = {
        "batch_size": 8,
        "optimizer": "sgd",
        "learning_rate": 0.05,
        "momentum": 0.9,
        "weight_decay": 0.0,
        "label_smoothing": 0.0,
        "precision": "fp32",
    }
    return Hyperparameters.model_validate(values | changed)


def samples(graph: Graph, number: int, rng: np.random.Generator) -> NDArray[np.float32]:
    return rng.standard_normal((number, *graph.shapes["image"]), np.float32)


def labelled(graph: Graph, number: int, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    classes = graph.shapes[graph.output.name][0]
    return Batch(samples(graph, number, rng), rng.integers(0, classes, number).astype(np.int32))


def channels_first(images: NDArray[np.float32]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))


def relative_error(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("make", [*SMALL, *THIN])
def test_outputs_are_those_of_pytorch_with_the_same_weights(
    engine: RankEngine, make: Callable[[], Graph]
) -> None:
    graph = make()
    rng = np.random.default_rng(1)
    weights, inputs = trained_weights(graph, rng), samples(graph, 4, rng)
    network = engine.build(graph, weights, hyperparameters())
    expected = torch_logits(graph, to_tensors(graph, weights), channels_first(inputs))
    assert relative_error(network.logits(inputs), expected.detach().numpy()) < 1e-5
    network.close()


def test_a_training_step_is_that_of_pytorch(engine: RankEngine) -> None:
    """Loss, gradients and momentum: three steps of both end in the same parameters."""
    graph = residual()
    weights = trained_weights(graph, np.random.default_rng(2))
    network = engine.build(graph, weights, hyperparameters(label_smoothing=0.1))
    tensors = to_tensors(graph, weights)
    parameters = [tensors[name] for name in graph.parameters]
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    losses = []
    for step in range(3):
        batch = labelled(graph, 8, seed=step)
        network.train_step(batch, 0.05)
        optimizer.zero_grad()
        logits = torch_logits(graph, tensors, channels_first(batch.inputs), training=True)
        loss = torch.nn.functional.cross_entropy(
            logits, torch.from_numpy(batch.labels).long(), label_smoothing=0.1
        )
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert network.drain_training() == pytest.approx(np.mean(losses), rel=1e-5)
    trained = network.weights()
    for name in graph.parameters:
        expected = tensors[name].detach().numpy()
        if expected.ndim == 4:
            expected = expected.transpose(2, 3, 1, 0)
        assert relative_error(trained[name], expected) < 1e-4, name
    network.close()


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
    from aiperf_hpc.replica.engines import tensorflow_engine

    variables = {name: tf.Variable(array) for name, array in weights.items()}
    found: NDArray[np.float32] = tensorflow_engine.execute(graph, variables, inputs, "fp32").numpy()
    return found


@pytest.mark.parametrize("make", [*SMALL, THIN[0]])
def test_moments_are_those_of_pytorch_and_measuring_them_changes_nothing(
    engine: RankEngine, make: Callable[[], Graph]
) -> None:
    """Of images, and of vectors: behind a dense layer."""
    graph = make()
    weights = trained_weights(graph, np.random.default_rng(11))
    network = engine.build(graph, weights, hyperparameters())
    batch = labelled(graph, 12)
    found = network.moments(batch)
    wanted = torch_moments(graph, weights, channels_first(batch.inputs))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    _assert_all_equal(network.weights(), weights)
    assert not any(array.any() for array in network.momenta().values())
    assert network.drain_training() == 0.0
    network.close()


CALIBRATED: dict[Callable[[], Graph], list[Morphism]] = {
    # Two of them, of which one reads what the other gives, with a skip between.
    residual: [
        Deeper("one_relu", 3),
        Skip("stem_relu", "one_relu_deep1_relu"),
        Deeper("one_relu_deep1_relu", 1),
        KernelSize("one_relu_deep1_conv", 5),
    ],
    two_stems: [Deeper("relu", 3), Deeper("relu", 1), Deeper("down_relu", 3)],
}


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 1e-3)])
@pytest.mark.parametrize("make", CALIBRATED)
def test_once_calibrated_a_child_starts_as_its_parent_in_training_mode_too(
    engine: RankEngine, make: Callable[[], Graph], precision: str, tolerance: float
) -> None:
    """What the first step goes by: the loss, and the slopes of the last layer."""
    graph, rng = make(), np.random.default_rng(12)
    weights = trained_weights(graph, rng)
    child, inherited = grow_with_weights(graph, weights, CALIBRATED[make], rng)
    batch = labelled(graph, 16)
    used = hyperparameters(precision=precision)
    parent, network = engine.build(graph, weights, used), engine.build(child, inherited, used)
    uncalibrated = engine.build(child, inherited, used)
    names = network.calibrate(batch)
    assert set(names) == {n.name for n in child.nodes if n.name.endswith("_norm") and n.inserted}
    fitted = network.weights()
    _assert_all_equal(network.weights(), inherited, but=names)
    assert not any(array.any() for array in network.momenta().values())
    assert relative_error(network.logits(batch.inputs), parent.logits(batch.inputs)) <= tolerance
    wanted = _last_slopes(graph, parent, batch)
    assert relative_error(_last_slopes(child, network, batch), wanted) <= tolerance
    assert relative_error(_last_slopes(child, uncalibrated, batch), wanted) > 10 * tolerance
    # A step later there is something in them that must not be lost.
    network.train_step(batch, 0.05)
    again = engine.build(child, network.weights(), used)
    assert again.calibrate(batch) == ()
    _assert_all_equal(again.weights(), network.weights())
    # Unlike with what was only measured.
    assert engine.build(child, fitted, used).calibrate(batch) == names
    for one in (parent, network, uncalibrated, again):
        one.close()


def test_what_is_not_finite_calibrates_nothing(engine: RankEngine) -> None:
    graph, rng = two_stems(), np.random.default_rng(14)
    child, inherited = grow_with_weights(
        graph, trained_weights(graph, rng), CALIBRATED[two_stems], rng
    )
    network = engine.build(child, inherited, hyperparameters())
    batch = labelled(graph, 8)
    batch.inputs[0] = np.inf
    with pytest.raises(MorphismError, match="relu_deep2_norm.*not finite"):
        network.calibrate(batch)
    _assert_all_equal(network.weights(), inherited)
    network.close()


def _last_slopes(graph: Graph, network: RankNetwork, batch: Batch) -> NDArray[np.float32]:
    """The gradients of the last layer's kernel and bias, and the loss."""
    buckets: list[NDArray[np.float32]] = []
    network.gradients(batch, 1.0, buckets.append)
    (flat,) = buckets
    last = sum(np.prod(graph.parameters[f"logits/{key}"]) for key in ("kernel", "bias"))
    assert list(graph.parameters)[-2:] == ["logits/kernel", "logits/bias"]
    return np.append(np.asarray(flat)[-int(last) :], np.float32(network.drain_training()))


def _assert_all_equal(found: Weights, wanted: Weights, but: tuple[str, ...] = ()) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        if name.split("/")[0] not in but:
            np.testing.assert_array_equal(found[name], array, name)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_statistics_are_kept_in_fp32(engine: RankEngine, precision: str) -> None:
    """In a compute type of 8 bits, a tenth of a batch's moments would mostly be rounded away."""
    graph = Graph(
        (
            Node("image", Input((4, 4, 2))),
            Node("norm", BatchNorm(), ("image",)),
            Node("pool", GlobalAveragePool2D(), ("norm",)),
            Node("logits", Dense(3), ("pool",)),
            Node("probabilities", Softmax(), ("logits",)),
        )
    )
    weights = trained_weights(graph, np.random.default_rng(15))
    network = engine.build(graph, weights, hyperparameters(precision=precision))
    batch = labelled(graph, 8)
    inputs = np.round(batch.inputs * 8) / 8  # Which bf16 holds as they are.
    network.train_step(Batch(inputs, batch.labels), 0.0)
    mean, variance = inputs.mean((0, 1, 2)), inputs.var((0, 1, 2), ddof=1)
    after = network.weights()
    for key, value in (("mean", mean), ("variance", variance)):
        expected = 0.9 * weights[f"norm/{key}"] + 0.1 * value
        np.testing.assert_allclose(after[f"norm/{key}"], expected, rtol=1e-5)
    network.close()


@pytest.mark.parametrize("make", [*SMALL, THIN[0]])
def test_copies_of_a_channel_grow_apart_here_too(
    engine: RankEngine, make: Callable[[], Graph]
) -> None:
    """Three steps of training: what were copies no longer are."""
    graph, rng = make(), np.random.default_rng(16)
    weights = trained_weights(graph, rng)
    free = [name for name, group in channel_groups(graph).items() if not group.fixed]
    producer = free[len(free) // 2]
    now = graph.shapes[producer][-1]
    child, inherited = grow_with_weights(graph, weights, [Wider(producer, 2 * now)], rng)
    network = engine.build(child, inherited, hyperparameters())
    for step in range(3):
        network.train_step(labelled(graph, 16, seed=step), 0.05)
    before, after = inherited[f"{producer}/kernel"], network.weights()[f"{producer}/kernel"]
    moved = np.abs(after - before).reshape(-1, 2 * now).max(axis=0)
    assert np.median(moved) > 1e-3
    for copy in range(now, 2 * now):
        origin = next(c for c in range(now) if np.array_equal(before[..., c], before[..., copy]))
        apart = np.abs(after[..., origin] - after[..., copy]).max()
        assert apart > 1e-3 * max(moved[origin], moved[copy])
    network.close()


def test_evaluation_counts_every_sample_once_whatever_the_batches(engine: RankEngine) -> None:
    graph = two_stems()
    weights = trained_weights(graph, np.random.default_rng(3))
    network = engine.build(graph, weights, hyperparameters())
    whole = labelled(graph, 21)
    logits = network.logits(whole.inputs).astype(np.float64)
    chosen = logits[np.arange(21), whole.labels]
    losses = np.log(np.exp(logits).sum(axis=1)) - chosen
    for size in (21, 8, 1):
        for start in range(0, 21, size):
            network.evaluate_step(
                Batch(whole.inputs[start : start + size], whole.labels[start : start + size])
            )
        sums = network.drain_evaluation()
        assert sums.samples == 21
        assert sums.correct == int((logits.argmax(axis=1) == whole.labels).sum())
        assert sums.loss == pytest.approx(losses.sum(), rel=1e-5)
    assert network.drain_evaluation().samples == 0
    network.close()


def test_training_learns_and_bf16_does_too(engine: RankEngine) -> None:
    for precision in ("fp32", "bf16"):
        graph = residual()
        weights = initial_weights(graph, np.random.default_rng(4))
        network = engine.build(graph, weights, hyperparameters(precision=precision))
        batch = labelled(graph, 16)
        first = _loss_after(network, batch, 1)
        assert _loss_after(network, batch, 60) < 0.5 * first, precision
        assert all(array.dtype == np.float32 for array in network.weights().values())
        network.close()


def _loss_after(network: Network, batch: Batch, steps: int) -> float:
    for _ in range(steps):
        network.train_step(batch, 0.05)
    network.drain_training()
    network.train_step(batch, 0.0)
    return network.drain_training()


def test_training_goes_on_from_weights_and_momenta_as_if_uninterrupted(engine: RankEngine) -> None:
    graph = residual()
    weights = trained_weights(graph, np.random.default_rng(9))
    batches = [labelled(graph, 8, seed=step) for step in range(6)]
    whole = engine.build(graph, weights, hyperparameters())
    for batch in batches:
        whole.train_step(batch, 0.05)
    first = engine.build(graph, weights, hyperparameters())
    for batch in batches[:3]:
        first.train_step(batch, 0.05)
    momenta = first.momenta()
    assert momenta.keys() == graph.parameters.keys()
    assert all(np.abs(array).max() > 0 for array in momenta.values())
    second = engine.build(graph, first.weights(), hyperparameters(), momenta)
    for batch in batches[3:]:
        second.train_step(batch, 0.05)
    expected, found = whole.weights(), second.weights()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
    for network in (whole, first, second):
        network.close()


def test_nothing_of_a_network_outlives_it(engine: RankEngine) -> None:
    """Traced functions are tens of megabytes; a replica makes hundreds of networks."""
    graph = two_stems()
    weights = initial_weights(graph, np.random.default_rng(10))

    def traced() -> int:
        gc.collect()
        return sum(type(thing).__name__ == "FuncGraph" for thing in gc.get_objects())

    counts = []
    for _ in range(3):
        network = engine.build(graph, weights, hyperparameters())
        network.train_step(labelled(graph, 8), 0.05)
        network.close()
        del network
        counts.append(traced())
    assert counts[0] == counts[1] == counts[2]


def test_parts_of_a_batch_give_what_the_whole_batch_does(engine: RankEngine) -> None:
    """Of uneven parts, one of them without a sample; the sum comes in memory that is aligned."""
    graph = classified_by_one_layer()
    weights = trained_weights(graph, np.random.default_rng(17))
    used = hyperparameters(weight_decay=0.1)
    whole, parts = (engine.build(graph, weights, used) for _ in range(2))
    batch = labelled(graph, 8)
    for _ in range(2):
        whole.train_step(batch, 0.05)
        given: list[NDArray[np.float32]] = []
        for first, last in ((0, 5), (5, 8), (8, 8)):
            part = Batch(batch.inputs[first:last], batch.labels[first:last])
            parts.gradients(part, part.size / 8, given.append)
        total = aligned(parts.buckets[0])
        total[:] = np.sum(given, axis=0)
        parts.apply([total], 0.05)
    assert not np.any(parts.zeros(0))
    assert len(parts.zeros(0)) == parts.buckets[0] == graph.parameter_count
    for name, array in whole.weights().items():
        np.testing.assert_allclose(parts.weights()[name], array, rtol=1e-5, atol=1e-6)
    # Three parts a step: their mean is a third of what they sum up to.
    assert 3 * parts.drain_training() == pytest.approx(whole.drain_training(), rel=1e-5)
    for network in (whole, parts):
        network.close()


def classified_by_one_layer() -> Graph:
    return Graph(
        (
            Node("image", Input((4, 4, 2))),
            Node("conv", Conv2D(3, 3), ("image",)),
            Node("pool", GlobalAveragePool2D(), ("conv",)),
            Node("logits", Dense(3), ("pool",)),
            Node("probabilities", Softmax(), ("logits",)),
        )
    )


def test_weight_decay_shrinks_weights(engine: RankEngine) -> None:
    graph = two_stems()
    weights = trained_weights(graph, np.random.default_rng(5))
    kernels = {}
    for decay in (0.0, 0.5):
        network = engine.build(graph, weights, hyperparameters(weight_decay=decay))
        network.train_step(labelled(graph, 8), 0.1)
        kernels[decay] = network.weights()["left_conv/kernel"]
        network.close()
    difference = kernels[0.0] - kernels[0.5]
    np.testing.assert_allclose(difference, 0.5 * 0.1 * weights["left_conv/kernel"], rtol=1e-3)


def test_a_loss_that_is_not_finite_is_reported(engine: RankEngine) -> None:
    graph = two_stems()
    network = engine.build(
        graph, initial_weights(graph, np.random.default_rng(6)), hyperparameters()
    )
    batch = labelled(graph, 8)
    batch.inputs[0, 0, 0, 0] = np.nan
    network.train_step(batch, 0.05)
    with pytest.raises(NonFiniteLossError, match="learning_rate"):
        network.drain_training()
    network.evaluate_step(batch)
    with pytest.raises(NonFiniteLossError, match="validation loss"):
        network.drain_evaluation()
    network.close()


def test_weights_of_another_graph_are_refused(engine: RankEngine) -> None:
    weights = initial_weights(two_stems(), np.random.default_rng(7))
    with pytest.raises(CheckpointError, match="do not fit"):
        engine.build(residual(), weights, hyperparameters())


@dataclass(frozen=True, slots=True)
class Unheard(Layer):
    kind: ClassVar[str] = "unheard"

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]


def test_a_layer_that_the_engine_does_not_know_is_named(engine: RankEngine) -> None:
    graph = Graph(
        (
            Node("image", Input((4,))),
            Node("strange", Unheard(), ("image",)),
            Node("relu", ReLU(), ("strange",)),
        )
    )
    with pytest.raises(EngineError, match="'strange'.*'unheard'"):
        engine.build(graph, {}, hyperparameters())


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
