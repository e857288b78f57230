"""Every engine computes what the graph says, keeps functions, and names its errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support import torch_network as reference
from tests.support.engine_steps import (
    assert_equal,
    built,
    given,
    labelled,
    momenta_of,
    network_of,
    outputs_of,
    relative_error,
    samples,
    trained_by_more_than_rounding,
)
from tests.support.networks import (
    SMALL,
    THIN,
    flat_images,
    residual,
    sequential,
    trained_weights,
    two_stems,
    volumes,
)

from aiperf_hpc.errors import (
    CheckpointError,
    EngineError,
    MorphismError,
    NonFiniteLossError,
    OutOfMemoryError,
)
from aiperf_hpc.graph import Graph, Layer, Node, Shape, layers
from aiperf_hpc.morphism.operators.morphisms import (
    Deeper,
    KernelSize,
    Morphism,
    Skip,
    grow_with_weights,
)
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.objective import ACCURACY, CLASSIFICATION
from aiperf_hpc.replica.data.base import Batch, Pixels, PixelScaling, labelled_images
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import RankEngine, RankNetwork
from aiperf_hpc.replica.engines.torch import gradients
from aiperf_hpc.replica.parallel.collectives import aligned
from aiperf_hpc.replica.tensorflow_import import tf


@pytest.mark.parametrize("make", [*SMALL, *THIN, volumes, flat_images])
def test_outputs_are_those_of_pytorch(engine: RankEngine, make: Callable[[], Graph]) -> None:
    """In inference, where nothing is dropped; kernels after a flatten mean the same to both."""
    graph = make()
    rng = np.random.default_rng(1)
    weights, inputs = trained_weights(graph, rng), samples(graph, 4, rng)
    found = outputs_of(network_of(engine, graph, weights), {"image": inputs})
    tensors = reference.to_tensors(graph, weights)
    expected = reference.logits(graph, tensors, reference.channels_first(inputs))
    assert relative_error(found, expected.detach().numpy()) < 1e-5


def of_pixels(channels: int) -> Graph:
    """1 x 1 convolutions of images of 25, 9 and 4 pixels; two of them leave the same ones out."""
    nodes = (
        Node("image", layers.Input((5, 5, channels)), ()),
        Node("all", layers.Conv2D(channels, 1, 1), ("image",)),
        Node("norm", layers.BatchNorm(), ("all",)),
        Node("relu", layers.ReLU(), ("norm",)),
        Node("left", layers.Conv2D(channels, 1, 2), ("relu",)),
        Node("right", layers.Conv2D(channels, 1, 2), ("relu",)),
        Node("sum", layers.Add(), ("left", "right")),
        Node("last", layers.Conv2D(channels, 1, 2), ("sum",)),
        Node("mean", layers.GlobalAveragePool2D(), ("last",)),
        Node("dense", layers.Dense(3), ("mean",)),
        Node("softmax", layers.Softmax(), ("dense",)),
    )
    return Graph(nodes)


def bottlenecks() -> Graph:
    """One block of each stage of ResNet-50, at an eighth of its width."""
    return resnet50((32, 32, 3), 10, base_width=8, blocks=(1, 1, 1, 1))


OF_LOSS = {"fp32": 1e-5, "bf16": 3e-2}
"""Tolerance of the loss."""
STEPS = [
    *((make, 16, "fp32", 1e-4) for make in (*SMALL, volumes, bottlenecks)),
    (volumes, 16, "bf16", 0.2),
    # Engines convolve single pixels in several ways, by how many there are.
    *(
        (partial(of_pixels, width), number, *precision)
        for width in (6, 16)
        for number in (8, 100)
        for precision in (("fp32", 1e-5), ("bf16", 0.1))
    ),
]
"""Networks, samples, precisions and tolerances of the gradients."""


@pytest.mark.parametrize(("make", "number", "precision", "tolerance"), STEPS)
def test_a_training_step_is_that_of_pytorch(
    engine: RankEngine, make: Callable[[], Graph], number: int, precision: str, tolerance: float
) -> None:
    """The momenta after a step of rate 1 are the gradients; decay shrinks kernels alone."""
    graph = make()
    weights, batch = trained_weights(graph, np.random.default_rng(3)), labelled(graph, number)
    used = {"precision": precision, "weight_decay": 0.1, "label_smoothing": 0.1}
    network = network_of(engine, graph, weights, **used)
    loss, wanted = reference.gradients(graph, weights, batch, smoothing=0.1)
    network.train_step(batch, 1.0)
    assert network.drain_training() == pytest.approx(loss, rel=OF_LOSS[precision])
    momenta, trained = momenta_of(network), network.weights()
    for name in trained_by_more_than_rounding(graph):
        wrong = np.linalg.norm(-momenta[name] - wanted[name]) / np.linalg.norm(wanted[name])
        assert wrong < tolerance, name
        kept = 0.9 if name.endswith("/kernel") else 1.0
        moved = kept * weights[name] + momenta[name]
        np.testing.assert_allclose(trained[name], moved, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_warming_restores_the_network(engine: RankEngine, precision: str, *, halves: bool) -> None:
    """Weights, momenta, statistics and losses, to the last bit; also between two steps."""
    graph = residual()
    cold, warmed = (built(engine, graph, 21, precision=precision) for _ in range(2))
    warmed.warm(8, halves=halves)
    assert_equal(warmed.weights(), cold.weights())
    assert all(array.dtype == np.float32 for array in warmed.weights().values())
    assert not any(np.any(momentum) for momentum in warmed.optimizer_state().values())
    for step in range(2):
        for network in (cold, warmed):
            network.train_step(labelled(graph, 8, seed=step), 0.05)
            network.evaluate_step(labelled(graph, 8))
        warmed.warm(8, halves=halves)
    assert_equal(warmed.weights(), cold.weights())
    assert_equal(warmed.optimizer_state(), cold.optimizer_state())
    assert warmed.drain_training() == cold.drain_training()
    assert warmed.drain_evaluation() == cold.drain_evaluation()


def test_weights_are_copies(engine: RankEngine) -> None:
    graph = two_stems()
    network = built(engine, graph, 23)
    before, state = network.weights(), network.optimizer_state()
    kept = {name: array.copy() for name, array in before.items()}
    network.train_step(labelled(graph, 8), 0.1)
    assert_equal(before, kept)
    assert not any(array.any() for array in state.values())


def test_few_channels_and_few_samples_are_trained_on(engine: RankEngine) -> None:
    """Strided 1 x 1 convolutions of few channels: a batch of one sample broke the process's heap.

    A batch of one normalises single values, whose variance is zero and not undefined.
    """
    graph = THIN[0]()
    network = built(engine, graph, 24)
    for step, size in enumerate((8, 1, 1, 3) * 3):
        network.train_step(labelled(graph, size, seed=step), 1e-4)
    assert network.drain_training() > 0.0
    assert all(np.isfinite(array).all() for array in network.weights().values())


@pytest.mark.parametrize("make", [*SMALL, THIN[0], volumes])
def test_moments_are_those_of_pytorch(engine: RankEngine, make: Callable[[], Graph]) -> None:
    """Of images, and of vectors: behind a dense layer."""
    graph = make()
    weights = trained_weights(graph, np.random.default_rng(11))
    network = network_of(engine, graph, weights)
    batch = labelled(graph, 12)
    found = network.moments(batch)
    wanted = reference.moments(graph, weights, reference.channels_first(batch.inputs["image"]))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert_equal(network.weights(), weights)
    assert not any(array.any() for array in network.optimizer_state().values())
    assert network.drain_training() == 0.0


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
def test_a_calibrated_child_starts_as_its_parent(
    engine: RankEngine, make: Callable[[], Graph], precision: str, tolerance: float
) -> None:
    """What the first step goes by: the loss, and the slopes of the last layer."""
    graph, rng = make(), np.random.default_rng(12)
    weights = trained_weights(graph, rng)
    child, inherited = grow_with_weights(graph, weights, CALIBRATED[make], rng)
    batch = labelled(graph, 16)
    parent = network_of(engine, graph, weights, precision=precision)
    network, uncalibrated = (
        network_of(engine, child, inherited, precision=precision) for _ in range(2)
    )
    names = network.calibrate(batch)
    assert set(names) == {n.name for n in child.nodes if n.name.endswith("_norm") and n.inserted}
    fitted = network.weights()
    assert_equal(network.weights(), inherited, but=names)
    assert not any(array.any() for array in network.optimizer_state().values())
    found, expected = (outputs_of(each, batch.inputs) for each in (network, parent))
    assert relative_error(found, expected) <= tolerance
    wanted = _last_slopes(parent, batch)
    assert relative_error(_last_slopes(network, batch), wanted) <= tolerance
    assert relative_error(_last_slopes(uncalibrated, batch), wanted) > 10 * tolerance
    # A step later there is something in them that must not be lost.
    network.train_step(batch, 0.05)
    again = network_of(engine, child, network.weights(), precision=precision)
    assert again.calibrate(batch) == ()
    assert_equal(again.weights(), network.weights())
    # Unlike with what was only measured.
    fitted_only = network_of(engine, child, fitted, precision=precision)
    assert fitted_only.calibrate(batch) == names


def test_calibration_refuses_infinities(engine: RankEngine) -> None:
    graph, rng = two_stems(), np.random.default_rng(14)
    child, inherited = grow_with_weights(
        graph, trained_weights(graph, rng), CALIBRATED[two_stems], rng
    )
    network = network_of(engine, child, inherited)
    batch = labelled(graph, 8)
    batch.inputs["image"][0] = np.inf
    with pytest.raises(MorphismError, match="relu_deep2_norm.*not finite"):
        network.calibrate(batch)
    assert_equal(network.weights(), inherited)


def _last_slopes(network: RankNetwork, batch: Batch) -> NDArray[np.float32]:
    """The gradients of the last layer's kernel and bias, and the loss."""
    network.apply(given(network, batch, 1.0), 1.0)
    momenta = momenta_of(network)  # After one step at a rate of 1: minus the gradients.
    slopes = [-momenta[f"logits/{key}"].ravel() for key in ("kernel", "bias")]
    return np.concatenate([*slopes, [np.float32(network.drain_training())]])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_statistics_are_kept_in_fp32(engine: RankEngine, precision: str) -> None:
    """In a compute type of 8 bits, a tenth of a batch's moments would mostly be rounded away."""
    graph = sequential(
        image=layers.Input((4, 4, 2)),
        norm=layers.BatchNorm(),
        pool=layers.GlobalAveragePool2D(),
        logits=layers.Dense(3),
        probabilities=layers.Softmax(),
    )
    weights = trained_weights(graph, np.random.default_rng(15))
    network = network_of(engine, graph, weights, precision=precision)
    batch = labelled(graph, 8)
    inputs = np.round(batch.inputs["image"] * 8) / 8  # Which bf16 holds as they are.
    network.train_step(labelled_images(inputs, batch.targets["label"]), 0.0)
    mean, variance = inputs.mean((0, 1, 2)), inputs.var((0, 1, 2), ddof=1)
    after = network.weights()
    for key, value in (("mean", mean), ("variance", variance)):
        expected = 0.9 * weights[f"norm/{key}"] + 0.1 * value
        np.testing.assert_allclose(after[f"norm/{key}"], expected, rtol=1e-5)


@pytest.mark.parametrize("predictions", [False, True])
def test_evaluation_in_batches_of_any_size(engine: RankEngine, *, predictions: bool) -> None:
    """Each sample's class is returned on request only."""
    objective = CLASSIFICATION.model_copy(update={"predictions": predictions})
    graph = two_stems()
    network = built(load_engine(engine.name, 2, objective=objective), graph, 3)
    network.warm(8)
    whole = labelled(graph, 21)
    images, labels = whole.inputs["image"], whole.targets["label"]
    logits = outputs_of(network, whole.inputs).astype(np.float64)
    classes = logits.argmax(axis=1)
    assert len(set(classes.tolist())) > 1  # Else any order would do.
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(21), labels]
    for size in (21, 8, 1):
        for start in range(0, 21, size):
            part = slice(start, start + size)
            network.evaluate_step(labelled_images(images[part], labels[part]))
        sums = network.drain_evaluation()
        assert sums.samples == 21
        assert sums.sums(ACCURACY)["correct"] == int((classes == labels).sum())
        assert sums.loss == pytest.approx(losses.sum(), rel=1e-5)
        found = None if sums.predictions is None else sums.predictions.tolist()
        assert found == (classes.tolist() if predictions else None)
    nothing = network.drain_evaluation()
    assert (nothing.samples, nothing.predictions) == (0, None)


def test_parts_of_a_batch_give_what_the_whole_batch_does(engine: RankEngine) -> None:
    """Of uneven parts, one of them without a sample; the sum comes in memory that is aligned."""
    graph = classified_by_one_layer()
    weights = trained_weights(graph, np.random.default_rng(17))
    whole, parts = (network_of(engine, graph, weights, weight_decay=0.1) for _ in range(2))
    batch = labelled(graph, 8)
    for _ in range(2):
        whole.train_step(batch, 0.05)
        totals = [aligned(size) for size in parts.buckets]
        for total in totals:
            total[:] = 0.0
        for first, last in ((0, 5), (5, 8), (8, 8)):
            part = labelled_images(
                batch.inputs["image"][first:last], batch.targets["label"][first:last]
            )
            for total, bucket in zip(totals, given(parts, part, part.size / 8), strict=True):
                total += bucket
        parts.apply(totals, 0.05)
    assert not np.asarray(parts.zeros(0)).any()
    assert len(parts.zeros(0)) == parts.buckets[0]
    for name, array in whole.weights().items():
        np.testing.assert_allclose(parts.weights()[name], array, rtol=1e-5, atol=1e-6)
    # Three parts a step: their mean is a third of what they sum up to.
    assert 3 * parts.drain_training() == pytest.approx(whole.drain_training(), rel=1e-5)


def test_bytes_are_trained_on_as_their_numbers(engine: RankEngine) -> None:
    graph = two_stems()
    rng = np.random.default_rng(19)
    weights = trained_weights(graph, rng)
    scaling = PixelScaling((1 / 58.395, 1 / 57.12), (-123.175 / 58.395, -115.78 / 57.12))
    pixels = Pixels(rng.integers(0, 256, (8, *graph.shapes["image"]), np.uint8), scaling)
    labels = np.arange(8, dtype=np.int32) % 3
    found = []
    for images in (pixels, np.asarray(pixels)):
        network = network_of(engine, graph, weights)
        batch = labelled_images(images, labels)
        moments = network.moments(batch)
        network.train_step(batch, 0.05)
        network.evaluate_step(batch)
        trained = np.concatenate([array.ravel() for array in network.weights().values()])
        found.append((moments, trained, network.drain_evaluation().loss))
    for of_bytes, of_numbers in zip(*found, strict=True):
        np.testing.assert_allclose(of_bytes, of_numbers, rtol=1e-4, atol=1e-5)


def test_buckets_hold_every_gradient(engine: RankEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more than one of them where the engine makes several of a large network."""
    monkeypatch.setattr(gradients, "BUCKET_BYTES", 500)
    graph = residual()
    weights = initial_weights(graph, np.random.default_rng(18))
    halves, stepped = (network_of(engine, graph, weights, momentum=0.0) for _ in range(2))
    batch = labelled(graph, 4)
    buckets = given(halves, batch, 1.0)
    assert tuple(len(bucket) for bucket in buckets) == halves.buckets
    assert (len(buckets) > 1) == (engine.name == "torch")
    halves.apply(buckets, 0.1)
    stepped.train_step(batch, 0.1)
    for name, array in stepped.weights().items():
        np.testing.assert_allclose(halves.weights()[name], array, atol=1e-6)
    assert all(bucket.any() for bucket in buckets)
    assert sum(halves.buckets) >= graph.parameter_count


def classified_by_one_layer() -> Graph:
    return sequential(
        image=layers.Input((4, 4, 2)),
        conv=layers.Conv2D(3, 3),
        pool=layers.GlobalAveragePool2D(),
        logits=layers.Dense(3),
        probabilities=layers.Softmax(),
    )


def test_a_loss_that_is_not_finite_is_reported(engine: RankEngine) -> None:
    graph = two_stems()
    network = built(engine, graph, 6)
    batch = labelled(graph, 8)
    batch.inputs["image"][0, 0, 0, 0] = np.nan
    network.train_step(batch, 0.05)
    with pytest.raises(NonFiniteLossError, match="learning_rate"):
        network.drain_training()
    network.evaluate_step(batch)
    with pytest.raises(NonFiniteLossError, match="validation loss"):
        network.drain_evaluation()


def test_fp16_is_refused_on_a_cpu(engine: RankEngine) -> None:
    with pytest.raises(EngineError, match="fp16.*use bf16"):
        built(engine, two_stems(), precision="fp16")


OUT_OF_MEMORY = {
    "tensorflow": ("_call", tf.errors.ResourceExhaustedError(None, None, "Cannot allocate\nmore")),
    "torch": ("_backward", torch.OutOfMemoryError("Cannot allocate\nmore")),
}


@pytest.mark.parametrize("ranks", [1, 2])
def test_out_of_memory(engine: RankEngine, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    network, batch = built(engine, two_stems()), labelled(two_stems(), 8)
    method, error = OUT_OF_MEMORY[engine.name]

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(network, method, fail)
    with pytest.raises(OutOfMemoryError, match=r"Cannot allocate") as raised:
        network.train_step(batch, 0.05) if ranks == 1 else given(network, batch, 0.5)
    assert "\n" not in str(raised.value)


def test_weights_of_another_graph_are_refused(engine: RankEngine) -> None:
    weights = initial_weights(two_stems(), np.random.default_rng(7))
    with pytest.raises(CheckpointError, match="do not fit"):
        network_of(engine, residual(), weights)


@dataclass(frozen=True, slots=True)
class Unheard(Layer):
    kind: ClassVar[str] = "unheard"

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]


def test_a_layer_that_the_engine_does_not_know_is_named(engine: RankEngine) -> None:
    graph = sequential(image=layers.Input((4,)), strange=Unheard(), relu=layers.ReLU())
    with pytest.raises(EngineError, match="'strange'.*'unheard'"):
        network_of(engine, graph, {})
